"""The variables of an Aggregator: their order, ordinals and names.

A variable gets an ordinal when a plan first uses it; the ordinal is part of the key of random
streams.  Its state is stored and saved under its name.  Variables are referenced weakly: a callback
reports those that were deleted, so that their state can be deleted too.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grace_tf.line.inputs import device_of, local, plain

Shape = tuple[int | None, ...]


@dataclasses.dataclass
class _Known:
    """One variable; it gets its ordinal when a plan first asks for it."""

    variable: weakref.ref
    path: str
    name: str
    shape: Shape
    ordinal: int | None = None


class VariableRegistry:
    """The variables that have joined, in the order of joining.

    A variable's name is its path; further variables of the same path are called `path~1`,
    `path~2`, … in the order of joining.

    Args:
      gone: a method, called with the ordinal of every variable that was deleted.  Its object is
        referenced weakly.
    """

    def __init__(self, gone: Callable[[int], None]) -> None:
        self._gone = weakref.WeakMethod(gone)
        # By id(), valid as long as the variable lives.  Loops go over a copy: the garbage collector
        # may call `part` at any moment.
        self._known: dict[int, _Known] = {}
        self._numbered: dict[int, _Known] = {}  # by ordinal
        self._names: set[str] = set()
        self._taken: list[range] = []  # all ordinals given so far, also to deleted variables
        self._saved: Mapping[str, tuple[int, Shape]] = {}
        self._matched: dict[str, str] | None = None
        self._lock = threading.RLock()

    def add(self, variables: Sequence[Any]) -> None:
        """Registers variables, in this order; those that have joined already stay as they are."""
        with self._lock:
            for variable in variables:
                held = plain(variable)
                known = self._known.get(id(held))
                if known is None or known.variable() is not held:
                    # Keras 2 takes gradients of tensors too; eager ones have no name.
                    path = getattr(variable, "path", None) or getattr(held, "name", "tensor")
                    self._add(held, str(path))

    def _add(self, held: Any, path: str) -> None:
        stem = name = path.removesuffix(":0")
        count = 0
        while name in self._names:
            count += 1
            name = f"{stem}~{count}"
        # Neither the variable's weak reference nor its callback keeps this object alive.
        left = functools.partial(_part, weakref.ref(self), id(held))
        shape = held.shape
        shape = () if shape.rank is None else tuple(shape.as_list())
        self._names.add(name)
        self._known[id(held)] = _Known(weakref.ref(held, left), path, name, shape)
        self._matched = None

    def part(self, key: int, reference: weakref.ref) -> None:
        """Forgets the deleted variable of this reference."""
        known = self._known.get(key)
        if known is None or known.variable is not reference:
            return
        del self._known[key]
        self._names.discard(known.name)
        self._matched = None
        gone = self._gone()
        if known.ordinal is not None:
            self._numbered.pop(known.ordinal, None)
            if gone is not None:
                gone(known.ordinal)

    def ordinals(self, variables: Sequence[Any]) -> tuple[int, ...]:
        """The ordinals of variables that have joined.

        Ordinals are given in the order of joining, when a plan first asks, and never change.
        Variables of a restored state get their ordinals in it, unless other variables have these
        already, so that they draw from the same random streams.
        """
        known = [self._known[id(plain(v))] for v in variables]
        if any(each.ordinal is None for each in known):
            self._number()
        return tuple(each.ordinal for each in known)

    def _number(self) -> None:
        waiting = [known for known in list(self._known.values()) if known.ordinal is None]
        sources = self._sources()
        for known in waiting:
            saved = self._saved.get(sources.get(known.name))
            if saved is not None and not any(saved[0] in given for given in self._taken):
                self._give(known, saved[0])
        ordinal = max((given.stop for given in self._taken), default=0)
        for known in waiting:
            if known.ordinal is None:
                self._give(known, ordinal)
                ordinal += 1

    def _give(self, known: _Known, ordinal: int) -> None:
        known.ordinal = ordinal
        last = self._taken[-1] if self._taken else range(0)
        if ordinal == last.stop:  # always, except for ordinals from files
            self._taken[-1:] = [range(last.start, ordinal + 1)]
        else:
            self._taken.append(range(ordinal, ordinal + 1))
        self._numbered[ordinal] = known

    @property
    def joined(self) -> list[tuple[str, Any]]:
        """(path, variable) of every variable that has joined and lives, in the order of joining."""
        found = [(known.path, known.variable()) for known in list(self._known.values())]
        return [(path, variable) for path, variable in found if variable is not None]

    def path(self, ordinal: int) -> str:
        """The path of a variable, which patterns match and workers compare."""
        return self._numbered[ordinal].path

    def name(self, ordinal: int) -> str:
        """The name of a variable, which is unique in this registry."""
        return self._numbered[ordinal].name

    def device(self, ordinal: int) -> str | None:
        """The device of the variable; for a distributed one, of its first component."""
        return device_of(local(self._numbered[ordinal].variable()))

    @property
    def table(self) -> dict[str, tuple[int, Shape]]:
        """(ordinal, shape) by name of every variable used in a plan, in the order of joining."""
        known = [each for each in list(self._known.values()) if each.ordinal is not None]
        return {each.name: (each.ordinal, each.shape) for each in known}

    def expect(self, saved: Mapping[str, tuple[int, Shape]]) -> None:
        """Sets the table of a restored state."""
        self._saved, self._matched = saved, None

    def source(self, ordinal: int) -> str | None:
        """The name of this variable in the restored state; None if it is not there."""
        return self._sources().get(self._numbered[ordinal].name)

    def now(self, source: str) -> str:
        """The name here of the variable that the restored state calls `source`."""
        return {theirs: ours for ours, theirs in self._sources().items()}.get(source, source)

    def _sources(self) -> dict[str, str]:
        found = self._matched  # another thread may reset it
        if found is None:
            ours = {each.name: each.shape for each in list(self._known.values())}
            theirs = {name: shape for name, (_, shape) in self._saved.items()}
            self._matched = found = matched(ours, theirs)
        return found


def matched(ours: Mapping[str, Shape], theirs: Mapping[str, Shape]) -> dict[str, str]:
    """Matches the variables of this run with those of a file: `{our name: their name}`.

    Equal names mean the same variable, in any order of joining.  Keras numbers layers without a
    name through the whole process, so the same model may have other names here.  Where both sides
    have names that the other lacks, but equal shapes in the order of joining, the order counts, as
    it does for the weights in Keras' own files.
    """
    same = {name: name for name in ours if name in theirs}
    both_lack = len(same) < min(len(ours), len(theirs))
    if both_lack and list(ours.values()) == list(theirs.values()):
        return dict(zip(ours, theirs))
    return same


def _part(registry: weakref.ref, key: int, reference: weakref.ref) -> None:
    alive = registry()
    if alive is not None:
        alive.part(key, reference)


class Ordinals:
    """A `VariableRegistry` for variables that have only ordinals, which serve as names."""

    @property
    def table(self) -> dict[str, tuple[int, Shape]]:
        return {}

    def name(self, ordinal: int) -> str:
        return str(ordinal)

    source = name

    def device(self, ordinal: int) -> None:
        return None

    def expect(self, saved: Mapping[str, tuple[int, Shape]]) -> None:
        pass

    def now(self, source: str) -> str:
        return source
