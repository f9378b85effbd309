"""What a method sends by bucket of a plan, and what its codec takes on this device.

A plan comes in; its buckets go out, with their collectives and with seconds.  One worker's part of
a whole step runs as in a training, state and flags included, over a transport that takes no time.
`advise` traces it.  `auto` has no time for that at the first step of a training: it runs the step
eagerly, on as many buckets as `MOST` elements fit in, and takes the others to be alike.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from grace_tf.advice.network import Collective
from grace_tf.advice.timeline import Bucket, ready_shares, shares_by_size
from grace_tf.aggregation.measure.link import Agree, duration
from grace_tf.aggregation.state.state import State
from grace_tf.line.exchange import Share, exchange
from grace_tf.line.lanes import Lane
from grace_tf.line.plan import LaneGroup, Plan
from grace_tf.line.rehearsal import Counted
from grace_tf.transports.base import CollectiveRecord

MOST = 8 << 20  # elements with which a training times a codec; always one bucket at least


class Step:
    """One worker's part of a step of `size` workers, traced.

    Args:
      plan: with one lane at least.
      grads: by position.
    """

    def __init__(self, plan: Plan, grads: Sequence[tf.Tensor], size: int) -> None:
        self._plan, self._grads, self._size = plan, list(grads), size
        self._state = State()
        self._state.place(size, (0,), [None])
        self._slots = self._state.slots_for(plan.groups, plan.seed)
        self._handed: list[tuple[int, Collective]] = []
        self._whole = self._traced(self._to_the_end)

    def _traced(self, function: Callable) -> Callable:
        # TensorFlow takes much longer to call a function of one list than of so many tensors.
        return tf.function(function, autograph=False).get_concrete_function(*self._grads)

    def _to_the_end(self, *grads: tf.Tensor) -> list[tf.Tensor]:
        share, transport = self._share(grads), Counted(self._size)
        with transport.recorded() as handed:
            (result,) = exchange(self._plan, [share], transport, summed=False)
        self._handed = [
            (self._plan.bucket_of(key), _collective(each, self._plan.round_of(key)))
            for (key, _), each in zip(transport.sent, handed)
        ]
        return self._state.commit(0, self._slots, share, result)

    def _to_the_first_collectives(self, *grads: tf.Tensor) -> list[tf.Tensor]:
        transport, first = Counted(self._size), {}
        exchange(self._plan, [self._share(grads)], transport, summed=False)
        for key, tensor in transport.sent:
            first.setdefault(self._plan.bucket_of(key), tensor)
        # TensorFlow leaves out what these do not need.
        return list(first.values())

    def _share(self, grads: Sequence[tf.Tensor]) -> Share:
        return self._state.share(0, self._slots, list(grads))

    @property
    def gathers_all(self) -> bool:
        """Whether every worker gets and decodes what all others send, not only sums of it."""
        kinds = {each.kind for _, each in self._handed}
        return "gather" in kinds and "all_to_all" not in kinds

    def seconds(
        self, repeats: int, meet: Callable[[], None] = lambda: None, agree: Agree = list
    ) -> tuple[float, float]:
        """Returns two medians, in seconds.

        The first is of the work before the first collective of each bucket, the second is of the
        whole step. `meet` is called before each of these measurements: in it all workers wait for
        each other.  Of each repeat the slowest worker counts.
        """
        encode = self._traced(self._to_the_first_collectives)
        times: list[list[float]] = [[], []]
        for repeat in range(-1, repeats):  # the first round is the warm-up
            for function, taken in zip((encode, self._whole), times):
                meet()
                each = duration(lambda f=function: f(*self._grads))
                taken += [each] if repeat >= 0 else []
        encoded, whole = (statistics.median(agree(each)) for each in times)
        return min(encoded, whole), whole

    def buckets(self, encode: float, decode: float, shares: Sequence[float] = ()) -> list[Bucket]:
        """The plan's buckets; each takes a part of the codec's time as large as its gradients.

        `shares`: see `Compute.shares`.
        """
        lanes = [_lanes(bucket) for bucket in self._plan.buckets]
        dense = [sum(lane.nbytes for lane in mine) for mine in lanes]
        shares = shares or shares_by_size([grad.shape.num_elements() for grad in self._grads])
        ready = ready_shares(shares, [[lane.position for lane in mine] for mine in lanes])
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


class EagerStep(Step):
    """The same, eagerly, of the first buckets of a plan, with gradients that it makes up.

    Raises ValueError for a plan without buckets.
    """

    def __init__(self, plan: Plan, size: int) -> None:
        if not plan.buckets:
            raise ValueError("A plan without buckets has no codec to time.")
        self._of, beginning = plan, _beginning(plan)
        super().__init__(beginning, _made_up(beginning), size)

    def _traced(self, function: Callable) -> Callable:
        return function

    def least(self, repeats: int) -> float:
        """The shortest time of the whole step; the first one is not counted."""
        times = [duration(lambda: self._whole(*self._grads)) for _ in range(1 + repeats)]
        return min(times[1:])

    def shares(self) -> list[Bucket]:
        """All buckets of the plan after `least`, with parts of what those that ran have taken."""
        whole = sum(bucket.dense for bucket in self.buckets(0.0, 0.0))
        sent: dict[tuple[str, int], int] = {}
        for _, each in self._handed:
            of = each.kind, each.round
            sent[of] = sent.get(of, 0) + each.nbytes
        found = []
        for bucket in self._of.buckets:
            dense = sum(lane.nbytes for lane in _lanes(bucket))
            part = dense / whole if whole else 0.0
            collectives = tuple(
                Collective(kind, round(part * n), number) for (kind, number), n in sent.items()
            )
            found.append(Bucket(0.0, part / 2, part / 2, collectives, dense))
        return found


def lasting(shares: Sequence[Bucket], seconds: float) -> list[Bucket]:
    """Such buckets, where those that ran take so many seconds to encode and decode."""
    return [
        dataclasses.replace(b, encode=b.encode * seconds, decode=b.decode * seconds) for b in shares
    ]


def _lanes(bucket: Sequence[LaneGroup]) -> list[Lane]:
    return [lane for group in bucket for lane in group.lanes]


def _beginning(plan: Plan) -> Plan:
    """A plan of the first buckets alone, without rows; the positions are those of its lanes."""
    taken, elements, positions = [], 0, itertools.count()
    for bucket in plan.buckets:
        elements += sum(lane.spec.shape.num_elements() for lane in _lanes(bucket))
        if taken and elements > MOST:
            break
        taken.append(tuple(_placed(group, positions) for group in bucket))
    return dataclasses.replace(plan, buckets=tuple(taken), sparse=(), by_rows=())


def _placed(group: LaneGroup, positions: Iterator[int]) -> LaneGroup:
    lanes = [dataclasses.replace(lane, position=next(positions)) for lane in group.lanes]
    return dataclasses.replace(group, lanes=tuple(lanes))


def _made_up(plan: Plan) -> list[tf.Tensor]:
    """Gradients for all lanes of a plan, by position: values in no order, of both signs."""
    grads = []
    for lane in [lane for bucket in plan.buckets for lane in _lanes(bucket)]:
        places = tf.range(lane.spec.shape.num_elements(), dtype=tf.float32)
        values = 1e-3 * tf.sin(12.9898 * places)
        grads.append(tf.cast(tf.reshape(values, lane.shape), lane.dtype))
    return grads


def _collective(record: CollectiveRecord, number: int) -> Collective:
    """The collective of this round."""
    half = record.kind == "sum" and tf.as_dtype(record.dtype).size == 2
    return Collective("half_sum" if half else record.kind, record.nbytes, number)
