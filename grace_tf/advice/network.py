"""`Network`: how long collectives take between workers.

The buffers that workers hand to collectives come in, with the link and what the machines themselves
add to it; seconds and bytes go out.

A collective of n bytes between N workers is a ring, as TensorFlow's, NCCL's and Gloo's are:

    occupied = bytes sent · seconds of a byte         while no other collective can send
    beside   = hops · seconds of a hop + bytes sent · seconds of a byte at the ends

    kind        hops       bytes that a worker sends
    sum, max    2 (N - 1)  2 n (N - 1) / N (1 hop for a small sum of 2 workers, see `SMALL_SUM`)
    half_sum    the same, of 16-bit elements, which a processor adds up more slowly
    gather      N - 1      n (N - 1)
    all_to_all  1          n (N - 1) / N

Collectives of several buckets are under way together, so one fills the link while another waits for
its next message.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from grace_tf.advice.link import Link

# Those that differ in time; "max" takes as long as "sum".
KINDS = ("sum", "half_sum", "gather", "all_to_all")


# Two workers add up buffers of at most so many bytes by sending each other the whole buffer.  An
# all-reduce sends as many bytes, but in two messages, and the second waits for the first.  So the
# latency of the link counts twice.  Larger buffers are added up by an all-reduce.  It sends one
# piece of a buffer while it adds up another piece, which takes less time on fast links.
SMALL_SUM = 1 << 18


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective: its kind, and the bytes of the buffer that each worker gives to it.

    The exchange of a bucket has one or several rounds, which run one after another.  All its
    collectives with the same `round` run at the same time.
    """

    kind: str
    nbytes: int
    round: int = 0

    def hops(self, size: int) -> int:
        """The number of messages that wait for each other, one after another."""
        if self.kind == "all_to_all" or (size == 2 and self.nbytes <= SMALL_SUM):
            return 1
        return (1 if self.kind == "gather" else 2) * (size - 1)

    def sent(self, size: int) -> float:
        """Bytes that each of `size` workers sends."""
        times = {"gather": size, "all_to_all": 1}.get(self.kind, 2)
        return self.nbytes * times * (size - 1) / size

    def received(self, size: int) -> int:
        """Bytes of the result that each worker gets."""
        return self.nbytes * (size if self.kind == "gather" else 1)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Seconds of each hop, of each byte that a worker sends, and of each byte at the two ends.

    `busy_hop` and `busy_byte` are seconds in which the worker's processors work for a hop and for a
    byte, and so for nothing else.  They are 0 where they were not measured.
    """

    hop: float
    byte: float
    ends: float = 0.0
    busy_hop: float = 0.0
    busy_byte: float = 0.0

    def occupied(self, collective: Collective, size: int) -> float:
        return collective.sent(size) * self.byte

    def beside(self, collective: Collective, size: int) -> float:
        return collective.hops(size) * self.hop + collective.sent(size) * self.ends

    def busy(self, collective: Collective, size: int) -> float:
        return collective.hops(size) * self.busy_hop + collective.sent(size) * self.busy_byte


def over_link(link: Link, host: Cost) -> Cost:
    """The cost on a link between machines that take `host` where both ends are one machine.

    Inside one machine the same processors send and receive.  Between two, half of that work is
    added to a message's time on the link, before it begins and after it has come; on a link that is
    faster than the machines, they set the pace.  A receiver asks for each message, so a hop takes
    the latency twice.
    """
    byte = max(host.byte, link.seconds_per_byte)
    ends = max(host.byte, link.seconds_per_byte + host.byte / 2) - byte
    return dataclasses.replace(host, hop=2 * link.latency + host.hop, byte=byte, ends=ends)


@dataclasses.dataclass(frozen=True)
class Network:
    """Workers and what connects them.

    With `per_host` = k > 1 each host of k processes is one worker, as with `hierarchical`: the
    gradients are added up inside the host, each process moves a piece of every buffer, and the
    pieces come together inside the host.

    Attributes:
      size: the number of workers that exchange payloads: processes, or hosts.
      across: the cost between them, by kind.
      per_host: the processes of a worker.
      inside: the cost between processes of one host, by kind; needed where `per_host` > 1.
    """

    size: int
    across: Mapping[str, Cost]
    per_host: int = 1
    inside: Mapping[str, Cost] = dataclasses.field(default_factory=dict)

    def occupied(self, collective: Collective) -> float:
        """The time in which a collective leaves no room on the link for another."""
        return _of(self.across, collective.kind).occupied(collective, self.size)

    def beside(self, collective: Collective) -> float:
        """The rest of its time, in which another collective may use the link."""
        seconds = _of(self.across, collective.kind).beside(collective, self.size)
        if self.per_host > 1:
            seconds += self._inside(self._piece(collective))
        return seconds

    def busy(self, collective: Collective) -> float:
        """The time for which this collective keeps the processors busy."""
        own = Collective(collective.kind, -(-collective.nbytes // self.per_host))
        seconds = _of(self.across, collective.kind).busy(own, self.size)
        if self.per_host > 1:
            seconds += _of(self.inside, "gather").busy(self._piece(collective), self.per_host)
        return seconds

    def busy_inside(self, nbytes: int) -> float:
        """The time for which a host's processors are busy adding up so many bytes of gradient."""
        if self.per_host == 1:
            return 0.0
        return _of(self.inside, "sum").busy(Collective("sum", nbytes), self.per_host)

    def seconds_inside(self, nbytes: int) -> float:
        """The time in which the processes of a host add up so many bytes of gradient."""
        if self.per_host == 1:
            return 0.0
        return self._inside(Collective("sum", nbytes))

    def _piece(self, collective: Collective) -> Collective:
        """The part of the result that each process of a host sends to the others of the host."""
        return Collective("gather", -(-collective.received(self.size) // self.per_host))

    def _inside(self, collective: Collective) -> float:
        cost = _of(self.inside, collective.kind)
        occupied = cost.occupied(collective, self.per_host)
        return occupied + cost.beside(collective, self.per_host)

    def sent(self, collectives: Sequence[Collective]) -> float:
        """Bytes that one process sends to other workers."""
        return sum(each.sent(self.size) for each in collectives) / self.per_host


def _of(costs: Mapping[str, Cost], kind: str) -> Cost:
    return costs[kind if kind in costs else "sum"]
