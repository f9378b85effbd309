"""What the line asks of a network, and nothing more: four collectives over flat buffers."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Callable

import tensorflow as tf

PLAN_KEYS = 1 << 20  # plans draw their keys from [PLAN_KEYS, 2**31); others may use those below


@dataclasses.dataclass(frozen=True)
class Handed:
    """One buffer that one worker handed to a collective: what a link should see.

    Where every step hands over another number of elements, a variable holds the last one.
    """

    kind: str
    dtype: str
    elements: int | tf.Variable

    @property
    def nbytes(self) -> int:
        elements = self.elements if isinstance(self.elements, int) else self.elements.numpy()
        return int(elements) * tf.as_dtype(self.dtype).size


class Transport(abc.ABC):
    """Carries flat buffers between `size` workers, of which `workers` live in this process (graph).

    Every method takes one rank-1 tensor per worker of this process, in the order of `workers`, and
    returns one result per such worker; the results are the same bits on every worker.  `key` is a
    positive 31-bit integer that names the collective: equal on all workers, different for
    any two collectives that may be under way together, the same on every step.

    A subclass writes the four `_collectives`; the public ones add the book-keeping of what was
    handed over while a graph was traced (or, eagerly, a step run), see `recorded`.
    """

    size: int
    workers: tuple[int, ...]
    _record: list[Handed] | None = None

    def sum(self, buffers: Sequence[tf.Tensor], key: int) -> list[tf.Tensor]:
        """Elementwise sum over all workers: float16, bfloat16, float32, float64, int32, int64."""
        self._note("sum", buffers)
        return self._sum(list(buffers), key)

    def max(self, buffers: Sequence[tf.Tensor], key: int) -> list[tf.Tensor]:
        """Elementwise maximum over all workers, same dtypes as `sum`."""
        self._note("max", buffers)
        return self._max(list(buffers), key)

    def gather(self, buffers: Sequence[tf.Tensor], key: int) -> list[tf.Tensor]:
        """`[size, n]`: row w is worker w's buffer, bit for bit (int32 words travel untouched)."""
        self._note("gather", buffers)
        return self._gather(list(buffers), key)

    def all_to_all(self, buffers: Sequence[tf.Tensor], key: int) -> list[tf.Tensor]:
        """Buffers are `[size, n]`; row j of worker w becomes row w of worker j."""
        self._note("all_to_all", buffers)
        return self._all_to_all(list(buffers), key)

    def rows(
        self, slices: Sequence[Sequence[tf.IndexedSlices]], key: Callable[[str], int]
    ) -> list[list[tf.IndexedSlices]]:
        """The sums of sparse tensors: all workers' rows in worker order, none added to another.

        `slices[i]` are the lanes of this process's i-th worker.  Their number of rows may differ
        between workers and steps; all else is static and equal on all workers.  `key(name)` gives
        a key for each collective that this takes.
        """
        slices = [list(mine) for mine in slices]
        return slices if self.size == 1 else self._rows(slices, key)

    def device(self, position: int):
        """A context for ops of the worker at this position of `workers`."""
        return tf.device(None)

    @contextlib.contextmanager
    def recorded(self) -> Iterator[list[Handed]]:
        """Within it, the list that it gives takes down what one worker hands to collectives."""
        record: list[Handed] = []
        self._record = record
        try:
            yield record
        finally:
            self._record = None

    def _note(self, kind: str, buffers: Sequence[tf.Tensor]) -> None:
        if len(buffers) != len(self.workers):
            raise ValueError(
                f"{type(self).__name__} carries {len(self.workers)} buffers, one per worker of "
                f"this process, but got {len(buffers)}."
            )
        if self._record is not None:  # alone too: what one of several would hand over
            self._record.append(
                Handed(kind, buffers[0].dtype.name, int(buffers[0].shape.num_elements()))
            )

    @abc.abstractmethod
    def _sum(self, buffers: list[tf.Tensor], key: int) -> list[tf.Tensor]: ...

    @abc.abstractmethod
    def _max(self, buffers: list[tf.Tensor], key: int) -> list[tf.Tensor]: ...

    @abc.abstractmethod
    def _gather(self, buffers: list[tf.Tensor], key: int) -> list[tf.Tensor]: ...

    @abc.abstractmethod
    def _rows(
        self, slices: list[list[tf.IndexedSlices]], key: Callable[[str], int]
    ) -> list[list[tf.IndexedSlices]]: ...

    @abc.abstractmethod
    def _all_to_all(self, buffers: list[tf.Tensor], key: int) -> list[tf.Tensor]: ...
