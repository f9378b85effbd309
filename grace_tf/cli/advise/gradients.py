"""Gradients to measure with, where there is no model that computes some."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

STATED = "drawn: normal, of which half the energy is the same on all workers"


def drawn(shapes: Sequence[Sequence[int]], worker: int = 0) -> list[tf.Tensor]:
    """Worker w's gradients of these shapes: g = s + n, float32.

    Both parts are normal with deviation 1e-3; s is the same on all workers, n is the worker's own.
    """
    return [
        1e-3 * tf.random.stateless_normal(shape, [i, 0])
        + 1e-3 * tf.random.stateless_normal(shape, [i, worker + 1])
        for i, shape in enumerate(shapes)
    ]
