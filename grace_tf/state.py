"""What is kept between steps: one plain variable per (variable, worker, leaf), and how it is saved.

In come the nests of tensors that memories and compressors make; out go the same nests read from
variables, and files.  The variables are made in `init_scope`, outside any strategy's creators, on
the device of the variable they belong to, and live as long as this object.
"""

from __future__ import annotations

import warnings
from typing import Any, Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable
from tensorflow.python.trackable.base import Trackable

from grace_tf.core.context import Context
from grace_tf.exchange import Share
from grace_tf.plan import Group

_META = "grace"  # the array of (format, size, worker ids …) in a saved state
_FORMAT = 1


class State(Trackable):
    """The states of the workers of this process.

    Leaves are named `<variable's ordinal>/<memory|compressor>/<leaf>/<worker>`, and `step/<worker>`
    counts committed steps.  `tf.train.Checkpoint` saves them under these names; `arrays` and `restore`
    are the same for files of our own.  Nothing here communicates.
    """

    def __init__(self) -> None:
        self.size = 1
        self.workers: tuple[int, ...] = ()
        self.devices: tuple[str | None, ...] = ()
        self._leaves: dict[str, ResourceVariable] = {}
        self._names: dict[str, list[str]] = {}  # "ordinal/kind" -> names of leaves
        self._waiting: Mapping[str, np.ndarray] | None = None

    def place(self, size: int, workers: Sequence[int], devices: Sequence[str | None]) -> None:
        """Says which workers live in this process, and where.  Later calls must agree."""
        now = (size, tuple(workers))
        if self._leaves and now != (self.size, self.workers):
            raise ValueError(
                f"This optimizer's state belongs to workers {self.workers} of {self.size}, but it is now used "
                f"by workers {now[1]} of {size}; build it where it trains."
            )
        self.size, self.workers = now
        self.devices = tuple(devices)
        for position in range(len(self.workers)):
            self._leaf("step", position, np.zeros([], np.int64))

    def ensure(self, group: Group, seed: int) -> None:
        """Makes the variables of a group's lanes that do not exist yet."""
        for position in range(len(self.workers)):
            for lane in group.lanes:
                for leaf, value in _fresh(lambda: group.memory.init_state(lane.spec)).items():
                    self._own(f"{lane.ordinal}/memory", leaf, position, value)
            for spec, ordinal in zip(group.specs, group.ordinals):
                ctx = Context((spec,), (ordinal,), 0, seed, self.size)
                for leaf, value in _fresh(lambda: group.compressor.init_state(spec, ctx)).items():
                    self._own(f"{ordinal}/compressor", leaf, position, value)

    def share(self, position: int, groups: Sequence[Group], grads: list[tf.Tensor]) -> Share:
        """The worker's part of a step: these gradients and the states as they are now."""
        share = Share(grads, {}, {}, self._read("step", position))
        for kind, ordinals in self._owners(groups):
            states = getattr(share, kind)
            for ordinal in ordinals:
                states[ordinal] = {
                    leaf: self._read(f"{ordinal}/{kind}/{leaf}", position)
                    for leaf in self._names.get(f"{ordinal}/{kind}", ())
                }
        return share

    def commit(self, position: int, result: Share) -> list[tf.Tensor]:
        """Takes in the next states if the step was finite; returns the gradients, non-finite if not."""

        def keep():
            for kind in ("memory", "compressor"):
                for ordinal, leaves in getattr(result, kind).items():
                    for leaf, value in leaves.items():
                        self._variable(f"{ordinal}/{kind}/{leaf}", position).assign(value)
            self._variable("step", position).assign_add(1)
            return list(result.grads)

        def refuse():
            # Integer gradients cannot say it; the float ones of the same step do.
            return [
                tf.fill(tf.shape(g), tf.constant(np.nan, g.dtype)) if g.dtype.is_floating else tf.identity(g)
                for g in result.grads
            ]

        return tf.cond(result.finite, keep, refuse) if result.grads else []

    @property
    def variables(self) -> list[ResourceVariable]:
        """All leaves, in the order of their making."""
        return list(self._leaves.values())

    @property
    def step(self) -> int:
        """Committed steps of the first worker of this process."""
        return int(self._variable("step", 0).numpy()) if self.workers else 0

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything to save: this process's workers with their ids, and the size."""
        saved = {name: variable.numpy() for name, variable in self._leaves.items()}
        saved[_META] = np.array([_FORMAT, self.size, *self.workers], np.int64)
        return saved

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Takes in saved arrays, now and for leaves that are yet to be made.

        The same worker of the same size gets its own state back, exactly.  Where the size has changed
        and all workers' states are in the file, every worker gets their mean (of what workers
        hold alike, that is the state itself).  What another process saved gives zero residuals and a warning.
        """
        if _META not in arrays:
            raise ValueError("This is no saved state of grace_tf: it names no workers.")
        self._waiting = dict(arrays)
        for name, variable in self._leaves.items():
            value = self._saved(name)
            if value is not None:
                variable.assign(value)

    # What follows is about single leaves.

    def _own(self, owner: str, leaf: str, position: int, initial: np.ndarray) -> None:
        names = self._names.setdefault(owner, [])
        if leaf not in names:
            names.append(leaf)
        self._leaf(f"{owner}/{leaf}", position, initial)

    def _leaf(self, stem: str, position: int, initial: np.ndarray) -> None:
        name = f"{stem}/{self.workers[position]}"
        if name in self._leaves:
            return
        saved = self._saved(name)
        value = initial if saved is None else saved
        with tf.init_scope(), tf.device(self.devices[position]):
            variable = ResourceVariable(value, trainable=False, name=f"grace/{name}")
        self._leaves[name] = variable
        self._track_trackable(variable, name=name.replace("/", "."))
        self._handle_deferred_dependencies(name=name.replace("/", "."), trackable=variable)

    def _saved(self, name: str) -> np.ndarray | None:
        if self._waiting is None:
            return None
        _, size, *workers = (int(x) for x in self._waiting[_META])
        stem, _, worker = name.rpartition("/")
        rows = [self._waiting.get(f"{stem}/{w}") for w in workers]
        rows = [row for row in rows if row is not None]
        if not rows:
            return None
        if size == self.size and int(worker) in workers:
            return self._waiting[name]
        if stem == "step" or "/compressor/" in stem:
            return rows[0]  # the same on every worker
        if size == len(workers):
            return np.mean(rows, axis=0, dtype=np.float64).astype(rows[0].dtype)
        warnings.warn(
            f"The saved state of worker {worker} of {self.size} is not in this file, which holds "
            f"workers {workers} of {size}: its residuals start from zero.",
            stacklevel=2,
        )
        return None

    def _variable(self, stem: str, position: int) -> ResourceVariable:
        return self._leaves[f"{stem}/{self.workers[position]}"]

    def _read(self, stem: str, position: int) -> tf.Tensor:
        return self._variable(stem, position).read_value()

    @staticmethod
    def _owners(groups: Sequence[Group]):
        yield "memory", [lane.ordinal for group in groups for lane in group.lanes]
        yield "compressor", [ordinal for group in groups for ordinal in group.ordinals]


def _fresh(make) -> dict[str, Any]:
    """First values as constants, whatever is being traced around this."""
    with tf.init_scope():
        return {leaf: value.numpy() for leaf, value in make().items()}
