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

from grace_tf.transports.base import Keys, Lanes, Tensors, Transport
from grace_tf.transports.group import Group


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
        length = -(-n // count)
        padding = [[0, 0]] * (buffer.shape.rank - 1) + [[0, count * length - n]]
        whole = tf.pad(buffer, padding) if count * length > n else buffer
        (moved,) = collective([whole[..., place * length : (place + 1) * length]], key)
        (pieces,) = self.inside.gather([tf.reshape(moved, [-1])], key)
        pieces = tf.reshape(pieces, [count, -1, length])  # [processes, hosts or 1, length]
        joined = tf.reshape(tf.transpose(pieces, [1, 0, 2]), [*moved.shape[:-1], count * length])
        return joined[..., :n]
