"""What the tests of schedules share with the processes that they start."""

import numpy as np
import tensorflow as tf

# Another memory, another compressor, other shapes of state, and one stage with as many steps.
SPEC = "none@0;powersgd:rank=1@2;powersgd:rank=2@4;topk:ratio=0.1@6"
FIRSTS = (0, 2, 4, 6)
STEPS = 8
MIXED = "none@0;topk:ratio=0.2@4"  # of a table the gradient is rows, then compressed


def gradients_of(step, worker=0, shape=(12, 10)):
    """The gradients of a worker in a step: one tensor."""
    draw = np.random.default_rng(100 * step + worker)
    return [tf.constant(draw.normal(size=shape), tf.float32)]
