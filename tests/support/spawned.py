"""What the tests of copies send to a spawned process, and what that one does with it.

It imports no grace_tf: what arrives must bring along what it needs.
"""

import keras


class Slow(keras.optimizers.SGD):
    """An optimizer of the user's own, which Keras does not know by a name."""


def trained(made, x, y):
    """The optimizer's class, the weights as they came and after an epoch."""
    before = made.get_weights()
    made.fit(x, y, batch_size=24, shuffle=False, verbose=0)
    return type(made.optimizer).__name__, before, made.get_weights()


def told(optimizer):
    """The class and the configuration of an optimizer that came."""
    return type(optimizer).__name__, optimizer.get_config()
