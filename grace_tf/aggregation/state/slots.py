"""Slots of the state: the variables of one memory or compressor, and what made them.

The variables are made in `init_scope` with the first values that their owner gives.  Their values
go into files and come back from them.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable
from tensorflow.python.trackable.base import Trackable

from grace_tf.aggregation.state import joined_variables, variable_nodes
from grace_tf.aggregation.state.file_format import Saved, saved_by
from grace_tf.core.compressor import Compressor
from grace_tf.core.context import Context
from grace_tf.core.memory import Memory
from grace_tf.line.exchange import Share
from grace_tf.line.plan import LaneGroup


@dataclasses.dataclass(frozen=True)
class SlotOwner:
    """The memory or compressor that leaves belong to, with its variables.

    `kind` is "memory" or "compressor", or "step", "choice" or "sample", which have no variable.
    Where variables are merged, the compressor's state belongs to all of them.  `apart`: stages of a
    schedule have separate leaves of the same names.  `dense`: the memory has claimed a variable
    that is not compressed.
    `first` returns the first values of the leaves by name.
    """

    kind: str
    ordinals: tuple[int, ...] = ()
    made_by: Memory | Compressor | None = None
    spec: tf.TensorSpec | None = None
    apart: bool = False
    dense: bool = False
    first: Callable[[], Mapping[str, np.ndarray]] = dataclasses.field(compare=False, default=dict)

    @property
    def key(self) -> tuple[str, int]:
        """The key by which a step finds it: the kind and the first variable."""
        return self.kind, self.ordinals[0] if self.ordinals else -1

    @property
    def method(self) -> str:
        """The name of the memory or compressor."""
        return "" if self.made_by is None else self.made_by.name

    def leaf_name(self, name: str, shape: Sequence[int], dtype: str) -> str:
        """The name of a leaf below its variable; with `apart` it differs between stages."""
        sizes = "x".join(map(str, shape))
        return f"{name}@{self.method}-{dtype}-{sizes}" if self.apart else name


STEP = SlotOwner("step", first=lambda: {"": np.zeros([], np.int64)})
# What "auto" has chosen, and where it is in its comparisons: see aggregation/choice.
CHOICE = SlotOwner("choice", first=lambda: {"": np.array([-1, -1, *8 * [0]], np.int64)})
# (step, vNMSE, residual by gradient) of the last step that "auto" has measured.
SAMPLE = SlotOwner("sample", first=lambda: {"": np.full([3], np.nan)})


def _first_stored(
    memory: Memory, dense: bool, spec: tf.TensorSpec, ordinal: int
) -> Mapping[str, tf.Tensor]:
    state = memory.init_dense_state(spec) if dense else memory.init_state(spec)
    return _stored(memory, state, spec, ordinal)


def _stored(memory: Memory, state: dict, spec: tf.TensorSpec, ordinal: int) -> dict:
    """The form in which a memory stores a first state, outside any step."""
    (stored,) = memory.store([state], Context((spec,), (ordinal,), 0, 0, 1, 0).stored())
    return stored


def owners_of(
    group: LaneGroup, seed: int, size: int, apart: Container[str] = ()
) -> list[SlotOwner]:
    """The owners of a lane group's state: the memory of each lane, then the compressor.

    `apart`: the kinds of leaves that stages of a schedule do not share.
    """
    owners = []
    memory, dense = group.memory, group.claimed
    for lane in group.lanes:
        first = functools.partial(_fresh, _first_stored, memory, dense, lane.spec, lane.ordinal)
        ordinals = (lane.ordinal,)
        owners.append(
            SlotOwner("memory", ordinals, memory, lane.spec, "memory" in apart, dense, first)
        )
    merged = tuple(lane.ordinal for lane in group.lanes) if group.merged else ()
    for spec, ordinal in zip(group.specs, group.ordinals):
        ordinals = merged or (ordinal,)
        ctx = Context((spec,), ordinals[:1], 0, seed, size)
        first = functools.partial(_fresh, group.compressor.init_state, spec, ctx)
        separate = "compressor" in apart
        owners.append(
            SlotOwner("compressor", ordinals, group.compressor, spec, separate, first=first)
        )
    return owners


def _fresh(init_state, *arguments) -> dict[str, np.ndarray]:
    """First values as NumPy arrays, also where this is called while a function is traced."""
    with tf.init_scope():
        return {leaf: value.numpy() for leaf, value in init_state(*arguments).items()}


def host_of(device: str | None) -> str | None:
    """The CPU of the host of a GPU; other devices unchanged."""
    if device is None:
        return "/CPU:0" if tf.config.list_logical_devices("GPU") else None
    spec = tf.DeviceSpec.from_string(device)
    gpu = spec.device_type == "GPU"
    return spec.replace(device_type="CPU", device_index=0).to_string() if gpu else device


def variables_of(
    stem: str, value: np.ndarray, workers: Sequence[int], devices: Sequence[str | None]
) -> list[ResourceVariable]:
    """Makes a variable with this value for each worker, on the device of the worker."""
    made = []
    for worker, device in zip(workers, devices):
        with tf.init_scope(), tf.device(device):
            name = f"grace/{stem}/{worker}"
            made.append(variable_nodes.made(value, name))
    return made


class Fresh(NamedTuple):
    """A leaf that has no variables yet, its first value, and the devices of the workers."""

    leaf: Leaf
    value: np.ndarray
    devices: Sequence[str | None]

    @property
    def joins(self) -> bool:
        """Whether this leaf may share a variable with other leaves."""
        return self.leaf.owner.ordinals and joined_variables.fits(self.value)


def give_variables(made: Iterable[Fresh], workers: Sequence[int]) -> None:
    """Makes the variables of new leaves.  For each worker, small leaves share one variable.

    The state that is equal on all workers is compared and broadcast as whole variables.  So leaves
    of that kind and leaves that differ between workers never share a variable.
    """
    sharing: dict[tuple, list[Fresh]] = {}
    for each in made:
        if each.joins and tf.executing_eagerly():
            sharing.setdefault((each.leaf.alike, *each.devices), []).append(each)
        else:
            sharing[each.leaf.stem,] = [each]
    for together in sharing.values():
        if len(together) > 1:
            _join(together, workers)
        else:
            ((leaf, value, devices),) = together
            leaf.variables = variables_of(leaf.stem, value, workers, devices)


def _join(leaves: Sequence[Fresh], workers: Sequence[int]) -> None:
    for worker, device in zip(workers, leaves[0].devices):
        with tf.init_scope(), tf.device(device):
            name = f"grace/{leaves[0].leaf.stem} and others/{worker}"
            joined = joined_variables.JoinedVariable([each.value for each in leaves], name)
        for each, part in zip(leaves, joined.parts):
            each.leaf.variables.append(part)


class Leaf(Trackable):
    """One leaf of the state: a variable, or a Part of one, for every worker of this process.

    `tf.train.Checkpoint` stores them as one stack, with the numbers of the workers.

    Args:
      state: the state that it belongs to; referenced weakly.
      stem: its full name.
      value: its first value.
    """

    def __init__(
        self, state: Any, owner: SlotOwner, name: str, stem: str, value: np.ndarray
    ) -> None:
        self._state = weakref.ref(state)
        self.owner, self.name, self.stem = owner, name, stem
        self.shape, self.dtype = value.shape, tf.as_dtype(value.dtype)  # of one worker's value
        self.variables: list[tf.Variable | joined_variables.Part] = []  # set by `give_variables`

    @property
    def alike(self) -> bool:
        """Whether all workers hold the same value: the step, and the state of compressors."""
        if self.owner == SAMPLE:  # a residual is a worker's own
            return False
        return self.owner.kind != "memory" or self.name in self.owner.made_by.alike

    @property
    def set_valued(self) -> bool:
        """True where workers' values are valid only as a set (EF21): they are reset together."""
        return self.owner.kind == "memory" and bool(self.owner.made_by.alike)

    def fits(self, owner: SlotOwner, value: np.ndarray) -> bool:
        """Whether an owner whose leaf would start from `value` may use this leaf instead."""
        this = (self.owner.method, self.owner.ordinals, self.shape, self.dtype)
        return this == (owner.method, owner.ordinals, value.shape, tf.as_dtype(value.dtype))

    @property
    def names(self) -> tuple[str, str]:
        """Its names in files below its variable: as now, and as with `apart` the other way."""
        form = self.shape, self.dtype.name
        other = dataclasses.replace(self.owner, apart=not self.owner.apart)
        return self.owner.leaf_name(self.name, *form), other.leaf_name(self.name, *form)

    def take(
        self, saved: Saved, size: int, workers: Sequence[int], warn: Callable[[str], None]
    ) -> None:
        """Gives each worker here its row of the saved rows, which have the form of this leaf."""
        same = saved.size == size
        whole = len(saved.workers) == saved.size
        if self.owner == SAMPLE and not (same and set(workers) <= set(saved.workers)):
            return self.start()  # one measured step less
        missing = [w for w in workers if not (same and w in saved.workers or whole)]
        if missing and not (self.alike and not self.set_valued):
            warn(
                f"The saved state of worker {missing[0]} of {size} is not in this file, which "
                f"holds {list(saved.workers)} of {saved.size}: its residuals start from zero."
            )
            if self.set_valued:
                return self.start()
        for worker, variable in zip(workers, self.variables):
            if same and worker in saved.workers:
                variable.assign(saved.rows[saved.workers.index(worker)])
            elif self.alike:
                variable.assign(saved.rows[0])
            elif whole:
                variable.assign(self.mean(saved.rows))
            else:
                variable.assign(self.owner.first()[self.name])

    def form(self, rows: np.ndarray) -> np.ndarray | None:
        """Saved rows in the form of this leaf; None where they belong to another variable."""
        if rows.shape[1:] == self.shape:
            if self.owner.kind != "memory" or rows.dtype == self.dtype.as_numpy_dtype:
                return rows
        floats = self._floats(rows) if self.owner.kind == "memory" else None
        return None if floats is None else np.stack([self._stored(value) for value in floats])

    def mean(self, rows: np.ndarray) -> np.ndarray:
        """The mean over workers of rows in the form of this leaf, in the same form."""
        floats = self._floats(rows)
        return self._stored(np.mean(floats, axis=0, dtype=np.float64).astype(floats.dtype))

    def _floats(self, rows: np.ndarray) -> np.ndarray | None:
        memory, spec = self.owner.made_by, self.owner.spec

        def load(rows: Sequence[np.ndarray]) -> np.ndarray:
            stored = [{self.name: tf.constant(row)} for row in rows]
            loaded = memory.load(stored, [spec] * len(rows))
            return np.stack([state[self.name].numpy() for state in loaded])

        try:
            values = load(rows)
        except ValueError:
            return None
        wanted = load([self.owner.first()[self.name]])
        return values if values.shape[1:] == wanted.shape[1:] else None

    def _stored(self, value: np.ndarray) -> np.ndarray:
        state = {self.name: tf.constant(value)}
        stored = _stored(self.owner.made_by, state, self.owner.spec, self.owner.ordinals[0])
        return stored[self.name].numpy()

    def start(self) -> None:
        """Gives all workers the first value."""
        value = self.owner.first()[self.name]
        for variable in self.variables:
            variable.assign(value)

    def rows(self) -> np.ndarray:
        """The values of the workers of this process."""
        return np.stack([variable.numpy() for variable in self.variables])

    def _serialize_to_tensors(self):
        state = self._state()
        whose = tf.constant([state.size, *state.workers], tf.int64)
        return {"rows": tf.stack([v.read_value() for v in self.variables]), "whose": whose}

    def _restore_from_tensors(self, restored):
        whose = [int(x) for x in restored["whose"].numpy()]
        self._state().adopt(self, saved_by(whose, restored["rows"].numpy(), self.stem))
        return {}  # nothing is left to be run


@dataclasses.dataclass(frozen=True)
class Change:
    """A variable of the state, the value that a step has read of it, and its next value.

    For the variables whose rows change, `last` is the variable and `next` are IndexedSlices.
    """

    variable: ResourceVariable
    last: Any
    next: Any

    def store(self) -> list[tf.Operation]:
        """Assigns the next value; returns a list of the graph's operation, empty if eager."""
        rows = isinstance(self.next, tf.IndexedSlices)
        written = (self.variable.scatter_update if rows else self.variable.assign)(self.next)
        return [] if tf.executing_eagerly() else [written.op]


class PlanSlots:
    """The leaves of the groups of one plan: a step reads them, and writes them if it is finite.

    `leaves[kind][ordinal]` are the leaves of a variable's memory or compressor, by name.  For the
    ordinals `by_rows` a step gets the variables themselves, and returns IndexedSlices.
    """

    def __init__(
        self, found: Iterable[tuple[SlotOwner, Mapping[str, Leaf]]], by_rows: Container[int] = ()
    ) -> None:
        self._by_rows = by_rows
        self._leaves: dict[str, dict[int, Mapping[str, Leaf]]] = {"memory": {}, "compressor": {}}
        for owner, leaves in found:
            self._leaves[owner.kind][owner.ordinals[0]] = leaves

    def read(self, position: int) -> tuple[dict[int, dict], dict[int, dict]]:
        """What the worker at this position has in memories and in compressors, by ordinal and name.

        Of the ordinals `by_rows` these are the variables.
        """
        found = {
            kind: {
                ordinal: {name: leaf.variables[position] for name, leaf in leaves.items()}
                for ordinal, leaves in owned.items()
            }
            for kind, owned in self._leaves.items()
        }
        wanted = [
            (values, name)
            for owned in found.values()
            for ordinal, values in owned.items()
            if ordinal not in self._by_rows
            for name in values
        ]
        read = joined_variables.read([values[name] for values, name in wanted])
        for (values, name), value in zip(wanted, read):
            values[name] = value
        return found["memory"], found["compressor"]

    def changes(self, position: int, given: Share, result: Share) -> list[Change]:
        """What a step changes of the worker at this position, from what it read and returns."""
        found = [
            (leaves[ordinal][name].variables[position], lasts[ordinal][name], value)
            for leaves, lasts, nexts in (
                (self._leaves["memory"], given.memory, result.memory),
                (self._leaves["compressor"], given.compressor, result.compressor),
            )
            for ordinal, values in nexts.items()
            for name, value in values.items()
        ]
        return [Change(*each) for each in joined_variables.whole_changes(found)]
