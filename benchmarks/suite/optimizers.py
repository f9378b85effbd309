"""The optimizers of the trainings, not yet wrapped: a kind of the outlines and arms comes in."""

from __future__ import annotations

from typing import Any

import keras

from benchmarks.suite.arms import LARGEST_NORM


def plain(kind: str, rate: Any) -> keras.optimizers.Optimizer:
    """The optimizer of a kind, with a learning rate or a schedule of it.

    With momentum the gradients are clipped, so that a training with the best of the learning rates
    does not diverge by chance.
    """
    if kind == "adam":
        return keras.optimizers.Adam(rate)
    if kind == "momentum":
        return keras.optimizers.SGD(rate, momentum=0.9, global_clipnorm=LARGEST_NORM)
    return keras.optimizers.SGD(rate)
