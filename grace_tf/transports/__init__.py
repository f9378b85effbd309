"""Carries buffers between workers: in one process, through tf.distribute, or between processes."""
