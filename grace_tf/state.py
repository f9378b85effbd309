"""What is kept between steps: one plain variable per (variable, worker, leaf), and how it is saved.

In come the nests of tensors that memories and compressors make; out go the same nests read from
variables, and files.  The variables are made in `init_scope`, outside any strategy's creators, on
the device of the worker they belong to, and live as long as this object.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable
from tensorflow.python.trackable.base import Trackable

from grace_tf.core.context import Context
from grace_tf.exchange import Share
from grace_tf.plan import Group
from grace_tf.refusal import Refusal
from grace_tf.sparse import values_of, with_values

_META = "grace"  # the array of (format, size, worker ids …) in a saved state
_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Saved:
    """One leaf as it was saved: `rows[i]` is that of worker `workers[i]` of `size`."""

    rows: np.ndarray
    size: int
    workers: tuple[int, ...]


class Leaf(Trackable):
    """One leaf of the state: a variable for every worker of this process.

    `tf.train.Checkpoint` stores the stack of all of them and whose they are.
    """

    def __init__(self, state: State, stem: str, variables: Sequence[ResourceVariable]) -> None:
        self._state = state
        self.stem = stem
        self.variables = list(variables)

    @property
    def alike(self) -> bool:
        """Whether all workers hold the same: the step, and what compressors keep."""
        return self.stem == "step" or "/compressor/" in self.stem

    def rows(self) -> np.ndarray:
        """The values of the workers of this process."""
        return np.stack([variable.numpy() for variable in self.variables])

    def _serialize_to_tensors(self):
        whose = tf.constant([self._state.size, *self._state.workers], tf.int64)
        return {"rows": tf.stack([v.read_value() for v in self.variables]), "whose": whose}

    def _restore_from_tensors(self, restored):
        size, *workers = (int(x) for x in restored["whose"].numpy())
        self._state.adopt(self, Saved(restored["rows"].numpy(), size, tuple(workers)))
        return {}  # nothing is left to be run


class State(Trackable):
    """The states of the workers of this process.

    Leaves are named `<variable's ordinal>/<memory|compressor>/<leaf>`, and `step` counts committed
    steps.  `tf.train.Checkpoint` saves them under these names; `arrays` and `restore` are the same
    for files of our own.  Nothing here communicates.
    """

    def __init__(self) -> None:
        self.size = 1
        self.workers: tuple[int, ...] = ()
        self.devices: tuple[str | None, ...] = ()
        self._leaves: dict[str, Leaf] = {}
        self._names: dict[str, list[str]] = {}  # "ordinal/kind" -> names of leaves
        self._first: dict[str, Callable] = {}  # "ordinal/kind" -> makes the first values of leaves
        self._waiting: dict[str, Saved] = {}  # of leaves that are yet to be made
        self._lost = ""  # the sentence about a lost state, until it is told
        self._warned = False
        self._refusal = Refusal()

    def place(self, size: int, workers: Sequence[int], devices: Sequence[str | None]) -> None:
        """Says which workers live in this process, and where.  Later calls must agree."""
        now = (size, tuple(workers))
        if self._leaves and now != (self.size, self.workers):
            raise ValueError(
                f"This state belongs to workers {list(self.workers)} of {self.size}, but is now "
                f"used by {list(now[1])} of {size}; make the optimizer or Aggregator anew where "
                "it trains."
            )
        self.size, self.workers = now
        self.devices = tuple(devices)
        self._own("step", lambda: {"": np.zeros([], np.int64)})

    def ensure(self, group: Group, seed: int) -> None:
        """Makes the variables of a group's lanes that do not exist yet."""
        for lane in group.lanes:
            first = functools.partial(_fresh, group.memory.init_state, lane.spec)
            self._own(f"{lane.ordinal}/memory", first)
        for spec, ordinal in zip(group.specs, group.ordinals):
            ctx = Context((spec,), (ordinal,), 0, seed, self.size)
            first = functools.partial(_fresh, group.compressor.init_state, spec, ctx)
            self._own(f"{ordinal}/compressor", first)

    def share(self, position: int, groups: Sequence[Group], grads: list) -> Share:
        """The worker's part of a step: these gradients and the states as they are now."""
        share = Share(grads, {}, {}, self._variable("step", position).read_value())
        for kind, ordinals in self._owners(groups):
            states = getattr(share, kind)
            for ordinal in ordinals:
                owner = f"{ordinal}/{kind}"
                states[ordinal] = {
                    leaf: self._variable(f"{owner}/{leaf}", position).read_value()
                    for leaf in self._names.get(owner, ())
                }
        return share

    def commit(self, position: int, result: Share) -> list[tf.Tensor | tf.IndexedSlices]:
        """Takes in the next states of a finite step; returns the gradients, non-finite if not."""
        grads = [values_of(g) for g in result.grads]

        def keep():
            for kind in ("memory", "compressor"):
                for ordinal, leaves in getattr(result, kind).items():
                    for leaf, value in leaves.items():
                        self._variable(f"{ordinal}/{kind}/{leaf}", position).assign(value)
            self._variable("step", position).assign_add(1)
            return list(grads)

        def refuse():
            worker, own = self.workers[position], result.own_finite
            return self._refusal.gradients(grads, result.step, own, worker, self.size)

        committed = tf.cond(result.finite, keep, refuse) if grads else []
        return [with_values(g, values) for g, values in zip(result.grads, committed)]

    @property
    def variables(self) -> list[ResourceVariable]:
        """All variables, leaf by leaf in the order of their making, worker by worker."""
        return [variable for leaf in self._leaves.values() for variable in leaf.variables]

    @property
    def alike_variables(self) -> list[ResourceVariable]:
        """What all workers hold alike, as the first worker of this process has it."""
        return [leaf.variables[0] for leaf in self._leaves.values() if leaf.alike]

    def counter(self) -> tf.Tensor:
        """The committed steps of the first worker of this process, as a step reads them."""
        return self._variable("step", 0).read_value()

    @property
    def step(self) -> int:
        """Committed steps of the first worker of this process, also if loaded and not yet used."""
        if self._leaves:
            return int(self._variable("step", 0).numpy())
        return int(self._waiting["step"].rows[0]) if "step" in self._waiting else 0

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything to save: a leaf's rows under its name, and under "grace" whose they are."""
        here = (self.size, self.workers)
        saved = {
            stem: waiting.rows
            for stem, waiting in self._waiting.items()
            if not self._leaves or (waiting.size, waiting.workers) == here
        }
        if not self._leaves and self._waiting:
            first = next(iter(self._waiting.values()))
            here = (first.size, first.workers)
        saved.update((stem, leaf.rows()) for stem, leaf in self._leaves.items())
        saved[_META] = np.array([_FORMAT, here[0], *here[1]], np.int64)
        return saved

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Takes in saved arrays, now and for leaves that are yet to be made.

        The same worker of the same size gets its own state back, exactly.  Where the size has
        changed and all workers' states are in the file, every worker gets their mean (of what
        workers hold alike, that is the state itself).  What another process saved gives zero
        residuals and a warning.
        """
        if _META not in arrays:
            raise ValueError("This is no saved state of grace_tf: it names no workers.")
        format_, size, *workers = (int(x) for x in arrays[_META])
        if format_ != _FORMAT:
            raise ValueError(
                f"This saved state has the format {format_}; this version reads {_FORMAT}."
            )
        self._lost, self._warned = "", False
        for stem, rows in arrays.items():
            if stem != _META:
                saved = Saved(np.asarray(rows), size, tuple(workers))
                if stem in self._leaves:
                    self.adopt(self._leaves[stem], saved)
                else:
                    self._waiting[stem] = saved

    def lose(self, source: str) -> None:
        """Starts anew, since `source` holds no state; warns once, if there is any to be kept."""
        self._waiting.clear()
        for owner, first in self._first.items():
            for name, value in first().items():
                for variable in self._leaves[_stem(owner, name)].variables:
                    variable.assign(value)
        self._lost = (
            f"{source} holds no compression state: residuals start from zero, so training goes on "
            "a little differently from a run that was not interrupted."
        )
        if any(stem != "step" for stem in self._leaves):
            self._tell()

    def adopt(self, leaf: Leaf, saved: Saved) -> None:
        """Gives every worker of this process what is its own of a saved leaf."""
        for worker, variable in zip(self.workers, leaf.variables):
            value = self._inherited(leaf, worker, saved)
            if value.shape != tuple(variable.shape):
                raise ValueError(
                    f"The saved state {leaf.stem} has the shape {value.shape}, this one "
                    f"{tuple(variable.shape)}: it is of another model, or the model's variables "
                    "came in another order."
                )
            variable.assign(value)

    def _inherited(self, leaf: Leaf, worker: int, saved: Saved) -> np.ndarray:
        if self.size == saved.size and worker in saved.workers:
            return saved.rows[saved.workers.index(worker)]
        if leaf.alike:
            return saved.rows[0]
        if saved.size == len(saved.workers):
            return np.mean(saved.rows, axis=0, dtype=np.float64).astype(saved.rows.dtype)
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"The saved state of worker {worker} of {self.size} is not in this file, which "
                f"holds {list(saved.workers)} of {saved.size}: its residuals start from zero.",
                stacklevel=2,
            )
        return np.zeros_like(saved.rows[0])

    def _own(self, owner: str, first: Callable[[], Mapping[str, np.ndarray]]) -> None:
        """Makes the variables of an owner's leaves, each with its first value or what was saved."""
        if owner in self._names:
            return
        leaves = first()
        self._names[owner], self._first[owner] = list(leaves), first
        if leaves and owner != "step":
            self._tell()
        for name, value in leaves.items():
            stem = _stem(owner, name)
            made = []
            for worker, device in zip(self.workers, self.devices):
                with tf.init_scope(), tf.device(device):
                    made.append(
                        ResourceVariable(value, trainable=False, name=f"grace/{stem}/{worker}")
                    )
            leaf = self._leaves[stem] = Leaf(self, stem, made)
            if stem in self._waiting:
                with tf.init_scope():
                    self.adopt(leaf, self._waiting.pop(stem))
            name = stem.replace("/", ".")
            self._track_trackable(leaf, name=name)
            self._handle_deferred_dependencies(name=name, trackable=leaf)

    def _tell(self) -> None:
        if self._lost:
            warnings.warn(self._lost, stacklevel=3)
        self._lost = ""

    def _variable(self, stem: str, position: int) -> ResourceVariable:
        return self._leaves[stem].variables[position]

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        # An exported model does not train: its SavedModel holds no compression state.
        return super()._trackable_children(save_type, **kwargs) if save_type == "checkpoint" else {}

    @staticmethod
    def _owners(groups: Sequence[Group]):
        yield "memory", [lane.ordinal for group in groups for lane in group.lanes]
        yield "compressor", [ordinal for group in groups for ordinal in group.ordinals]


def _stem(owner: str, name: str) -> str:
    return f"{owner}/{name}" if name else owner


def _fresh(init_state, *arguments) -> dict[str, np.ndarray]:
    """First values as constants, whatever is being traced around this."""
    with tf.init_scope():
        return {leaf: value.numpy() for leaf, value in init_state(*arguments).items()}
