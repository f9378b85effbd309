"""The optimizers of the suite's trainings, before `grace_tf.wrap`.

The kind of an optimizer comes in, as an outline or an arm names it; the optimizer goes out.
"""

from __future__ import annotations

from typing import Any

import keras

from benchmarks.suite.arms import LARGEST_NORM


def plain(kind: str, rate: Any) -> keras.optimizers.Optimizer:
    """The optimizer of this kind.  `rate` is a learning rate or a schedule.

    With momentum the gradients are clipped, so that a training with the best of the learning rates
    does not diverge by chance.
    """
    if kind == "adam":
        return keras.optimizers.Adam(rate)
    if kind == "momentum":
        return keras.optimizers.SGD(rate, momentum=0.9, global_clipnorm=LARGEST_NORM)
    return keras.optimizers.SGD(rate)
