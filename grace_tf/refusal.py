"""What is said of a step that is not finite: one log line on each worker.

Its aggregates hold NaN, so that every worker's optimizer or loss scaling sees the same.  The
training may well go on, so each worker says once that it was so.
"""

from __future__ import annotations

import logging

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

_LOG = logging.getLogger("grace_tf")


class Refusal:
    """Refuses the steps of one State that are not finite."""

    def __init__(self) -> None:
        self._told = False

    def tell(self, step: tf.Tensor, own: tf.Tensor, worker: int, size: int) -> None:
        """Says once, in a step that is refused, which one it was.

        Args:
          step: the steps committed so far.
          own: whether this worker's own gradients were finite.
        """

        def say(step: np.ndarray, own: np.ndarray) -> np.ndarray:
            self._say(int(step), bool(own), worker, size)
            return np.bool_(True)

        if not control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            tf.numpy_function(say, [step, own], tf.bool)  # XLA has no Python

    def _say(self, step: int, own: bool, worker: int, size: int) -> None:
        if self._told:
            return
        self._told = True
        what = "a gradient of another worker, or the sum over workers," if own else "its gradient"
        _LOG.warning(
            "Worker %d of %d: in step %d %s was not finite. The compression leaves its state as it "
            "was and gives NaN to the optimizer, on all workers. Later steps like it are not told.",
            *(worker, size, step, what),
        )
