"""What the tests of copies send to a spawned process, and what this process does with it.

This module does not import grace_tf: unpickling must import what the objects need.
"""

from this_keras import keras


class Slow(keras.optimizers.SGD):
    """An optimizer of the user's own, which Keras does not know by a name."""


def trained(made, x, y):
    """The optimizer's class, the weights on arrival, and those after an epoch."""
    before = made.get_weights()
    made.fit(x, y, batch_size=24, shuffle=False, verbose=0)
    return type(made.optimizer).__name__, before, made.get_weights()


def described(optimizer):
    """The class and the configuration of an optimizer that has arrived."""
    return type(optimizer).__name__, optimizer.get_config()
