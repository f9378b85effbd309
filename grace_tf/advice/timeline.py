"""The time of a training step, from when each bucket's gradients are ready to the update.

What each bucket costs comes in, in the order in which backward computes them; out goes the time of
a step and how much of the exchange backward hides.  Buckets follow one another through three
stages, each of which works on one bucket at a time:

    encoded[i]  = max(ready[i], encoded[i-1]) + encode[i]
    sent[i]     = max(encoded[i], sent[i-1]) + the time for which its collectives occupy the link
    decoded[i]  = max(sent[i] + the rest of their time, decoded[i-1]) + decode[i]
    step        = max(end of backward, decoded[last]) + update

On a processor that computes both, encoding also delays the rest of backward, and so does the
processor time of the collectives.  What several rounds compute between their collectives counts as
decoding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from grace_tf.advice.network import Collective, Network


@dataclasses.dataclass(frozen=True)
class Compute:
    """Seconds that a step computes apart from the exchange.

    `shared`: the processor that computes backward compresses, too.
    `shares`: each variable's share of the time of backward, in the model's order; empty where these
    are not known.
    """

    forward: float
    backward: float
    update: float = 0.0
    shared: bool = True
    shares: tuple[float, ...] = ()

    @property
    def seconds(self) -> float:
        return self.forward + self.backward + self.update

    @classmethod
    def of(cls, seconds: float, shared: bool = True) -> Compute:
        """A step of which only the whole is known: backward takes twice as long as forward."""
        return cls(seconds / 3, 2 * seconds / 3, 0.0, shared)


@dataclasses.dataclass(frozen=True)
class Bucket:
    """What one bucket costs.

    Attributes:
      ready: the share of backward after which all its gradients are there, 0 to 1.
      encode, decode: seconds of the processor, before and after the collectives.
      collectives: of all rounds, in order.
      dense: bytes of its gradients.
    """

    ready: float
    encode: float
    decode: float
    collectives: tuple[Collective, ...]
    dense: int = 0

    def occupied(self, network: Network) -> float:
        """The seconds for which its collectives fill the link, so that no other can send."""
        inside = network.seconds_inside(self.dense)
        return inside + sum(network.occupied(each) for each in self.collectives)

    def beside(self, network: Network) -> float:
        """The rest of its collectives' time, in which others may use the link.

        The collectives of one round run at the same time.  So only the longest of each round
        counts, and the rounds are added up.
        """
        longest: dict[int, float] = {}
        for each in self.collectives:
            longest[each.round] = max(longest.get(each.round, 0.0), network.beside(each))
        return sum(longest.values())

    def busy(self, network: Network) -> float:
        """The seconds for which its collectives keep the processors busy."""
        inside = network.busy_inside(self.dense)
        return inside + sum(network.busy(each) for each in self.collectives)


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Seconds of a step: all of it, and its parts when each runs alone.

    `hidden` is how much of codec and exchange runs beside backward, and beside each other.
    """

    seconds: float
    codec: float
    exchange: float
    hidden: float


def step_time(compute: Compute, buckets: Sequence[Bucket], network: Network) -> StepTime:
    """The time of a step of these buckets; see the module."""
    delay = encoded = sent = decoded = 0.0
    for bucket in buckets:
        ready = compute.forward + bucket.ready * compute.backward + delay
        encoded = max(ready, encoded) + bucket.encode
        delay += bucket.encode + bucket.busy(network) if compute.shared else 0.0
        sent = max(encoded, sent) + bucket.occupied(network)
        decoded = max(sent + bucket.beside(network), decoded) + bucket.decode
    codec = sum(bucket.encode + bucket.decode for bucket in buckets)
    computed = compute.forward + compute.backward
    # A processor that computes, compresses and sends is busy for the sum of these times.
    beside = codec + sum(bucket.busy(network) for bucket in buckets)
    busy = computed + (beside if compute.shared else 0.0)
    seconds = max(decoded, busy) + compute.update
    exchange = exchange_time(buckets, network)
    hidden = max(0.0, compute.seconds + codec + exchange - seconds)
    return StepTime(seconds, codec, exchange, hidden)


def exchange_time(buckets: Sequence[Bucket], network: Network) -> float:
    """The time of all collectives where nothing is computed."""
    sent, received = 0.0, 0.0
    for bucket in buckets:
        sent += bucket.occupied(network)
        received = max(received, sent + bucket.beside(network))
    return received


def shares_by_size(sizes: Sequence[int]) -> list[float]:
    """Each variable's share of backward, where only the elements of each are known.

    Variables that are not smaller than the median one, as kernels are, get equal shares.  The
    others get none.
    """
    median = sorted(sizes)[len(sizes) // 2] if sizes else 0
    count = sum(size >= median for size in sizes)
    return [(size >= median) / count for size in sizes]


def ready_shares(shares: Sequence[float], buckets: Sequence[Sequence[int]]) -> list[float]:
    """When each bucket's gradients are there, as shares of backward.

    Args:
      shares: each variable's own, in the model's order; backward computes the last one first.
      buckets: the positions of the variables of each bucket, in backward order.
    """
    return [min(1.0, sum(shares[min(positions) :])) if positions else 1.0 for positions in buckets]
