"""The seconds that a traced step spends encoding, waiting for collectives, and decoding.

It takes tensors of the step that mark moments, and reads a clock as each is ready.  On a GPU a
tensor is ready for TensorFlow before it is computed, and XLA has no clock: there nothing is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds of one step of one worker, which include waiting for the other workers.

    Attributes:
      encoding: at least one bucket was between its last gradient and a collective.
      exchange: at least one collective was under way.
      decoding: at least one bucket was between its last collective and its aggregates.
      exposed: from the last gradient to the last aggregate, what backward does not hide.
    """

    encoding: float
    exchange: float
    decoding: float
    exposed: float


def readable(tensors: Iterable[tf.Tensor]) -> bool:
    """Whether a clock shows when these tensors of a step are ready."""
    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly() or control_flow_util.GraphOrParentsInXlaContext(graph):
        return False
    return not any("GPU" in tensor.device.upper() for tensor in tensors) and not (
        tf.config.list_logical_devices("GPU")
    )


def now(after: Sequence[tf.Tensor]) -> tf.Tensor:
    """Seconds since the epoch, float64, read when these tensors are ready."""
    with tf.control_dependencies(after):
        clock = tf.timestamp()
    # A tf.function would let each clock wait for the one before it and for other operations.
    graph = tf.compat.v1.get_default_graph()
    if graph.experimental_acd_manager is not None:
        graph.experimental_acd_manager.run_independently(clock.op)
    return clock


class Crossings:
    """Reads the clock when each collective of a step begins and ends, in the program's order.

    A collective waits for the clock of its beginning.  Else a busy processor may read that clock
    after the collective's end.

    Attributes:
      buckets: the bucket of each collective.
      clock: the clocks of its beginning and of its end, for each collective.
    """

    def __init__(self) -> None:
        self.buckets: list[int] = []
        self.clock: list[tf.Tensor] = []

    def begins(self, bucket: int, sent: tf.Tensor) -> tf.Tensor:
        if not readable([sent]):
            return sent
        self.buckets.append(bucket)
        self.clock.append(now([sent]))
        with tf.control_dependencies(self.clock[-1:]):
            return tf.identity(sent)

    def ends(self, received: tf.Tensor) -> None:
        if readable([received]):
            self.clock.append(now([received]))


def read(
    ready: Sequence[tf.Tensor],
    crossings: Crossings,
    aggregates: Sequence[Sequence[tf.Tensor]],
) -> tuple[Moments, tf.Tensor]:
    """Reads the clock at all moments of a step.

    Args:
      ready: by bucket, `now` of its gradients.
      crossings: the collectives of the step.
      aggregates: by bucket, its aggregates.
    Returns: (what the moments are, their seconds, float64 [moments]).
    """
    clock = [*ready, *crossings.clock, *map(now, aggregates)]
    return Moments(len(ready), tuple(crossings.buckets)), tf.stack(clock)


@dataclasses.dataclass(frozen=True)
class Moments:
    """What the moments of a step are: `buckets`, their number; the bucket of each collective."""

    buckets: int
    crossings: tuple[int, ...]

    def times(self, clock: np.ndarray) -> Times:
        """What the read seconds mean."""
        ready, crossed = clock[: self.buckets], clock[self.buckets : -self.buckets]
        done = clock[-self.buckets :]
        encoding, exchange, decoding = [], [], []
        for bucket in range(self.buckets):
            began = ready[bucket]
            for number, mine in enumerate(self.crossings):
                if mine == bucket:
                    sent, received = crossed[2 * number : 2 * number + 2]
                    encoding.append((began, sent))
                    exchange.append((sent, received))
                    began = max(began, received)
            decoding.append((began, done[bucket]))
        exposed = max(0.0, float(max(done) - max(ready)))
        return Times(*map(_length, (encoding, exchange, decoding)), exposed)


def _length(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of these spans."""
    total, end = 0.0, -np.inf
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return float(total)
