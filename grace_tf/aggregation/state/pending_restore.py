"""Holds restored arrays until the leaves exist that they belong to.

A file is often read before the leaves exist.  When an owner makes its leaves later, it gets their
values from here.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

import numpy as np

from grace_tf.aggregation.state.file_format import Saved, Table
from grace_tf.aggregation.state.slots import Leaf, SlotOwner
from grace_tf.aggregation.state.variable_registry import Ordinals, VariableRegistry


def stem_of(owner: SlotOwner, name: str, name_of: Callable[[int], str | None]) -> str | None:
    """The full name of an owner's leaf, from its name below the variable.

    None where a variable has no name.
    """
    if not owner.ordinals:
        return owner.kind
    names = [name_of(ordinal) for ordinal in owner.ordinals]
    if None in names:
        return None
    first, *others = names
    if others:  # merged variables: the name lists them
        first += f"+{zlib.crc32('/'.join(others).encode()):08x}"
    return f"{first}/{owner.kind}/{name}"


class Restored:
    """The leaves of a restored state that no leaf has taken yet.

    Args:
      registry: the variables of this run.
      leaves: the saved leaves, by their names in the file.
      table: of these names; None for format 1, whose names are ordinals.
    """

    def __init__(
        self,
        registry: VariableRegistry | Ordinals,
        leaves: Mapping[str, Saved] | None = None,
        table: Table | None = None,
    ) -> None:
        self._registry = registry
        self.leaves = dict(leaves or {})
        self.table = table
        registry.expect({} if table is None else table.variables)

    def stem(self, leaf: Leaf) -> str | None:
        """The name of this leaf in the file; None if the file lacks its variables or its method.

        Leaves of the same name but of another method are other leaves.  A leaf that was saved with
        a schedule also serves without one, and the other way round, if its shape fits.
        """
        owner = leaf.owner
        if self.table is None:
            return _format_1(leaf, "/")
        stem, other = (stem_of(owner, name, self._registry.source) for name in leaf.names)
        fits = other in self.leaves and self.leaves[other].rows.shape[1:] == leaf.shape
        if fits and stem not in self.leaves:
            stem = other
        return stem if self.table.made.get(stem, owner.method) == owner.method else None

    def children(self, leaf: Leaf) -> list[str]:
        """The names that checkpoints may have for this leaf; those of format 1 hold its ordinal."""
        by_name = None if self.table is None else self.stem(leaf)
        return [name for name in (by_name, _format_1(leaf, ".")) if name is not None]

    def unknown(self, owner: SlotOwner) -> str | None:
        """The name of an owner's variable that a table of variables lacks."""
        if self.table is None or not self.table.variables:
            return None
        lacking = [o for o in owner.ordinals if self._registry.source(o) is None]
        return self._registry.name(lacking[0]) if lacking else None

    def unused(self, size: int, workers: tuple[int, ...], table: Table) -> dict[str, np.ndarray]:
        """The leaves not taken yet, by the names of this run, which are also added to `table`."""
        then = self.table or Table({}, {})
        rows = {}
        for stem, saved in self.leaves.items():
            if "/" not in stem or (saved.size, saved.workers) != (size, workers):
                continue
            source, kind, name = stem.rsplit("/", 2)
            today = self._today(source)
            if today is not None:
                stem_today = f"{today}/{kind}/{name}"
                rows[stem_today] = saved.rows
                if stem in then.made:
                    table.made.setdefault(stem_today, then.made[stem])
                if source in then.variables:
                    table.variables.setdefault(today, then.variables[source])
        return rows

    def _today(self, source: str) -> str | None:
        if self.table is not None:
            return self._registry.now(source)
        try:
            return self._registry.name(int(source))
        except KeyError:
            return None  # the variable does not exist, and format 1 knows only its ordinal


def _format_1(leaf: Leaf, separator: str) -> str:
    owner = leaf.owner
    named = (str(owner.ordinals[0]), owner.kind, leaf.name) if owner.ordinals else (owner.kind,)
    return separator.join(named)
