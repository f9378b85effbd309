"""`Hosts`: each host is one worker, which compresses the sum of its processes' gradients.

All processes of a host hold the same buffers; the transport returns the buffers of all hosts.  Each
process of a host moves one piece of a buffer between hosts, and the processes then gather the
pieces inside the host.  So a buffer crosses the network between hosts once, on as many connections
as a host has processes.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence

import tensorflow as tf

from grace_tf.transports import meeting_in_memory
from grace_tf.transports.base import Keys, Lanes, Tensors, Transport
from grace_tf.transports.group import Group
from grace_tf.transports.shared_memory import SharedMemory

_UNIT = 32  # elements, of at least two bytes


class Hosts(Transport):
    """Carries between hosts; worker w is the w-th host, in the order of ranks.

    Bytes a process sends to other hosts, for n bytes handed over, H hosts of L processes: sum, max
    2 n (H - 1) / (H L); gather n (H - 1) / L; all_to_all n (H - 1) / (H L).  Inside the host come
    the same results once more, and the sum of the gradients.

    Args:
      everyone: all processes; rows of sparse gradients go directly between them.
      inside: the processes of this host.
      across: one process of each host: those with the same place in their host as this one.
      gradients: their number in a step, where a process has several; else one a process.
    """

    def __init__(
        self,
        everyone: Transport,
        inside: Transport,
        across: Transport,
        gradients: int | None = None,
    ) -> None:
        self.size, self.workers = across.size, across.workers
        self.inside, self._across, self._everyone = inside, across, everyone
        self._gradients = gradients or everyone.size

    @classmethod
    def of(cls, group: Group) -> Hosts:
        """The hosts of a group; every process must call it.

        Raises RuntimeError where hosts have different numbers of processes, where the ranks of the
        processes order the hosts differently at different places, and where the group does not
        know hosts or has no collectives among only some processes.
        """
        ranks: dict[object, list[int]] = collections.defaultdict(list)
        for rank, host in enumerate(group.hosts):
            ranks[host].append(rank)
        if len({len(there) for there in ranks.values()}) > 1:
            counts = ", ".join(f"{len(there)} on {host}" for host, there in ranks.items())
            raise RuntimeError(
                f"hierarchical needs equally many workers on each host, but there are {counts}: "
                "start equally many everywhere, or leave hierarchical out."
            )
        across = list(zip(*ranks.values()))
        if any(list(each) != sorted(each) for each in across):
            raise RuntimeError(
                "hierarchical needs the hosts in the same order at each of their places, but the "
                f"workers of the hosts are {list(ranks.values())}: number them host by host."
            )
        here = ranks[group.hosts[group.rank]]
        inside = group.part(here)
        segment = meeting_in_memory.shared(group, here)
        if segment is not None:
            inside = SharedMemory(inside, group, segment)
        return cls(group, inside, group.part(across[here.index(group.rank)]))

    @property
    def gradients(self) -> int:
        return self._gradients

    def rows(self, slices: Sequence[Sequence[tf.IndexedSlices]], key: Keys) -> Lanes:
        with self._everyone.recorded() as handed:
            totals = self._everyone.rows(slices, key)
        self._take_down(handed)
        return totals

    def _sum(self, buffers: Tensors, key: int) -> Tensors:
        return [self._by_pieces(buffers[0], self._across.sum, key)]

    def _max(self, buffers: Tensors, key: int) -> Tensors:
        return [self._by_pieces(buffers[0], self._across.max, key)]

    def _gather(self, buffers: Tensors, key: int) -> Tensors:
        return [self._by_pieces(buffers[0], self._across.gather, key)]

    def _all_to_all(self, buffers: Tensors, key: int) -> Tensors:
        return [self._by_pieces(buffers[0], self._across.all_to_all, key)]

    def _rows(self, slices: Lanes, key: Keys) -> Lanes:
        raise AssertionError("`rows` leaves rows to all processes.")

    def _messages(self, messages: Tensors, longest: tf.Tensor, key: Keys) -> Tensors:
        raise AssertionError("With hierarchical no rows are compressed: see line/sparse_policy.py.")

    def _explain(self, error: Exception) -> str | None:
        return self._everyone._explain(error)

    def _by_pieces(self, buffer: tf.Tensor, collective: Callable, key: int) -> tf.Tensor:
        """`collective` of a buffer `[…, n]`, of which this process moves one piece of n."""
        count, place, n = self.inside.size, self.inside.workers[0], buffer.shape[-1]
        if count == 1:
            return collective([buffer], key)[0]
        if n < count:  # each process has a piece, and moves it
            padding = [[0, 0]] * (buffer.shape.rank - 1) + [[0, count - n]]
            return self._by_pieces(tf.pad(buffer, padding), collective, key)[..., :n]
        lengths = pieces_of(n, count)
        begin = sum(lengths[:place])
        (moved,) = collective([buffer[..., begin : begin + lengths[place]]], key)
        return self.inside.join([moved], lengths, key)[0]


def pieces_of(n: int, count: int) -> list[int]:
    """The lengths of `count` pieces of n ≥ count elements, as equal as can be, none empty.

    Long ones begin at multiples of 64 bytes: TensorFlow copies other slices.
    """
    unit = _UNIT if n >= 4 * _UNIT * count else 1
    units, more = divmod(-(-n // unit), count)
    lengths = [unit * (units + (place < more)) for place in range(count)]
    lengths[-1] -= sum(lengths) - n
    return lengths
