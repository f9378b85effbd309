"""What each method sends for some shapes, and what its codec takes on this device.

Shapes, a spec and a number of workers come in; the buckets of the plan go out, with their
collectives and with seconds.  One worker's part of a whole step is traced as it runs in a training,
state and flags included, over a transport that takes no time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from grace_tf.advice.network import Collective
from grace_tf.advice.timeline import Bucket, ready_shares
from grace_tf.aggregation.state.state import State
from grace_tf.line.exchange import Share, exchange
from grace_tf.line.plan import make_plan
from grace_tf.line.rehearsal import Counted
from grace_tf.line.settings import settings

_FEW, _SOME = 2, 8  # workers with which a codec runs whose work grows with their number


def measure(spec: str, grads: Sequence[tf.Tensor], size: int, repeats: int) -> list[Bucket]:
    """The buckets of a method between `size` workers with such gradients.

    Where every worker decodes the payloads of all others, the work grows with their number: of more
    than 8 workers it follows from what 2 and 8 take.
    """
    traced = _Step(spec, grads, size)
    if size <= _SOME or not traced.gathers_all:
        encode, whole = traced.seconds(repeats)
    else:
        few, some = (_Step(spec, grads, n).seconds(repeats) for n in (_FEW, _SOME))
        each = max(0.0, some[1] - few[1]) / (_SOME - _FEW)
        encode, whole = some[0], some[1] + (size - _SOME) * each
    return traced.buckets(encode, max(0.0, whole - encode))


class _Step:
    """One worker's part of a step of `size` workers."""

    def __init__(self, spec: str, grads: Sequence[tf.Tensor], size: int) -> None:
        self._grads, self._size = list(grads), size
        specs = [tf.TensorSpec(grad.shape, grad.dtype) for grad in grads]
        paths = [str(i) for i in range(len(specs))]
        self.plan = make_plan(settings(spec).at(0), paths, specs, range(len(specs)))
        self._state = State()
        self._state.place(size, (0,), [None])
        self._slots = self._state.slots_for(self.plan.groups, self.plan.seed)
        self._handed: list[tuple[int, Collective]] = []
        self._whole = self._traced(self._to_the_end)

    def _traced(self, function: Callable) -> Callable:
        # TensorFlow takes much longer to call a function of one list than of so many tensors.
        return tf.function(function, autograph=False).get_concrete_function(*self._grads)

    def _to_the_end(self, *grads: tf.Tensor) -> list[tf.Tensor]:
        share, transport = self._share(grads), Counted(self._size)
        with transport.recorded() as handed:
            (result,) = exchange(self.plan, [share], transport, summed=False)
        self._handed = [
            (self.plan.bucket_of(key), Collective(each.kind, each.nbytes))
            for (key, _), each in zip(transport.sent, handed)
        ]
        return self._state.commit(0, self._slots, share, result)

    def _to_the_first_collectives(self, *grads: tf.Tensor) -> list[tf.Tensor]:
        transport, first = Counted(self._size), {}
        exchange(self.plan, [self._share(grads)], transport, summed=False)
        for key, tensor in transport.sent:
            first.setdefault(self.plan.bucket_of(key), tensor)
        # TensorFlow leaves out what these do not need.
        return list(first.values())

    def _share(self, grads: Sequence[tf.Tensor]) -> Share:
        return self._state.share(0, self._slots, list(grads))

    @property
    def gathers_all(self) -> bool:
        """Whether every worker gets and decodes what all others send, not only sums of it."""
        kinds = {each.kind for _, each in self._handed}
        return "gather" in kinds and "all_to_all" not in kinds

    def seconds(self, repeats: int) -> tuple[float, float]:
        """Medians: up to the first collective of each bucket, and of the whole step."""
        encode = self._traced(self._to_the_first_collectives)
        times: list[list[float]] = [[], []]
        for repeat in range(-1, repeats):  # the first round is the warm-up
            for function, taken in zip((encode, self._whole), times):
                each = seconds(lambda f=function: f(*self._grads))
                taken += [each] if repeat >= 0 else []
        encoded, whole = map(statistics.median, times)
        return min(encoded, whole), whole

    def buckets(self, encode: float, decode: float) -> list[Bucket]:
        """The plan's buckets; each takes a part of the codec's time as large as its gradients."""
        lanes = [[lane for group in bucket for lane in group.lanes] for bucket in self.plan.buckets]
        dense = [sum(lane.nbytes for lane in mine) for mine in lanes]
        sizes = [grad.shape.num_elements() for grad in self._grads]
        ready = ready_shares(sizes, [[lane.position for lane in mine] for mine in lanes])
        return [
            Bucket(
                ready[b],
                encode * dense[b] / sum(dense),
                decode * dense[b] / sum(dense),
                tuple(each for bucket, each in self._handed if bucket == b),
                dense[b],
            )
            for b in range(len(lanes))
        ]


def seconds(function: Callable[[], Any]) -> float:
    """The seconds of one call and of all the work that it starts; returns with a result read.

    `bench` waits for all devices instead, which TensorFlow refuses within a process group.
    """
    began = time.perf_counter()
    results = tf.nest.flatten(function())
    if results:
        tf.reshape(results[-1], [-1])[:1].numpy()
    return time.perf_counter() - began
