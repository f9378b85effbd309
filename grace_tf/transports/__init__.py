"""How buffers cross: in one process, through tf.distribute, or between plain processes."""
