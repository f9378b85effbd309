"""The state between steps: one plain variable per (variable, worker, leaf), and how it is saved.

Memories and compressors return nests of tensors; the state stores them in variables, reads them for
the next step, and writes them to files.  A leaf is found by the name of its variable, the method,
and its name, shape and dtype.  Its variables are made in `init_scope`, outside the variable
creators of a strategy, on the device of their worker, and live as long as the variable they serve.
Small leaves share one (`joined_variables`), which lives as long as any of them; in files each leaf
is by itself.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Container, Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util
from tensorflow.python.trackable.base import Trackable

from grace_tf.aggregation.state import variable_nodes
from grace_tf.aggregation.state.file_format import Saved, Table, packed, unpacked
from grace_tf.aggregation.state.joined_variables import whole_variables
from grace_tf.aggregation.state.nonfinite import NonFiniteGuard
from grace_tf.aggregation.state.pending_restore import Restored, stem_of
from grace_tf.aggregation.state.slots import (
    CHOICE,
    SAMPLE,
    STEP,
    Change,
    Fresh,
    Leaf,
    PlanSlots,
    SlotOwner,
    give_variables,
    host_of,
    owners_of,
)
from grace_tf.aggregation.state.variable_registry import Ordinals, VariableRegistry
from grace_tf.core.compressor import Compressor
from grace_tf.core.memory import Memory
from grace_tf.line.exchange import Share
from grace_tf.line.plan import LaneGroup

_TWO_THREADS = (
    "Another thread of this process has run the same step of one Aggregator meanwhile, so a part "
    "of the gradient would be lost: let one thread at a time run a tf.function that calls an "
    "Aggregator, or give each thread an Aggregator and variables of its own."
)
_FORMAT_1 = re.compile(r"(\d+)\.(memory|compressor)\.(.+)")  # names in checkpoints of format 1


class State(Trackable):
    """The states of the workers of this process.

    Leaves are named `<variable's name>/<memory|compressor>/<leaf>`, and `step` counts committed
    steps.  `tf.train.Checkpoint` saves them under these names; `arrays` and `restore` do it for
    files of grace_tf.  Nothing here communicates.

    Args:
      registry: knows the names of the variables; without it their ordinals are their names.
    """

    def __init__(self, registry: VariableRegistry | None = None) -> None:
        self.size = 1
        self.workers: tuple[int, ...] = ()
        self.devices: tuple[str | None, ...] = ()
        self._registry = registry or Ordinals()
        self._leaves: dict[str, Leaf] = {}
        # By the owner's key: a list of one entry, or of one entry for each stage of a schedule.
        self._slots: dict[tuple[str, int], list[tuple[SlotOwner, dict[str, Leaf]]]] = {}
        self._restored = Restored(self._registry)
        self._lost = ""  # the warning about a lost state, until it is given
        self._warned: set[str] = set()  # the warnings given since the last restore
        self._nonfinite = NonFiniteGuard()

    def place(
        self, size: int, workers: Sequence[int], devices: Sequence, called: str = "worker"
    ) -> None:
        """Sets the workers of this process and their devices.  Later calls must agree."""
        now = (size, tuple(workers))
        if self._leaves and now != (self.size, self.workers):
            raise ValueError(
                f"This state belongs to workers {list(self.workers)} of {self.size}, but is now "
                f"used by {list(now[1])} of {size}; make the optimizer or Aggregator anew where "
                "it trains."
            )
        self.size, self.workers = now
        self.devices, self._called = tuple(devices), called.capitalize()
        self._own_alone(STEP)

    def slots_for(
        self, groups: Sequence[LaneGroup], seed: int, apart: Container[str] = ()
    ) -> PlanSlots:
        """The leaves that a step of these groups reads and writes; makes those that do not exist.

        A leaf of another memory or compressor of the same variable is used again if it has the same
        name, method, shape and dtype; else it is replaced, except for the kinds in `apart`.
        """
        owners = [o for group in groups for o in owners_of(group, seed, self.size, apart)]
        by_rows = {o for group in groups if group.by_rows for o in group.ordinals}
        # Entered once for all leaves; each makes several calls that enter it, which takes much
        # longer from a graph than from here.
        with tf.init_scope():
            made: list[Fresh] = []
            found = [(owner, self._own(owner, made, bool(apart))) for owner in owners]
            self._begin(made)
            return PlanSlots(found, by_rows)

    def forget(self, ordinal: int) -> None:
        """Deletes the state of a variable that was deleted."""
        for stem, leaf in list(self._leaves.items()):
            if ordinal in leaf.owner.ordinals:
                self._leaves.pop(stem, None)
        for key, slots in list(self._slots.items()):
            if any(ordinal in owner.ordinals for owner, _ in slots):
                self._slots.pop(key, None)

    def share(self, position: int, slots: PlanSlots, grads: list) -> Share:
        """The worker's part of a step: these gradients and the states as they are now."""
        (step,) = variable_nodes.read([self._leaves["step"].variables[position]])
        memory, compressor = slots.read(position)
        return Share(grads, memory, compressor, step)

    def commit(
        self, position: int, slots: PlanSlots, given: Share, result: Share
    ) -> list[tf.Tensor | tf.IndexedSlices]:
        """Stores the next states of a finite step and returns its gradients; else returns NaN.

        `given`: the share that this worker began the step with.
        """
        changes = slots.changes(position, given, result)
        counter = Change(self._leaves["step"].variables[position], result.step, result.step + 1)
        alone = self._alone(counter.variable, result)

        def check():
            return [] if alone is None else [tf.debugging.Assert(alone, [_TWO_THREADS])]

        def report():
            who = f"{self._called} {self.workers[position]} of {self.size}" * (self.size > 1)
            self._nonfinite.report(result.step, result.own_finite(), who)

        if not result.grads:
            return []
        return self._nonfinite.commit(
            *(changes, counter, check), result.grads, result.finite, report
        )

    def store(
        self, position: int, slots: PlanSlots, read: Mapping[int, dict], nexts: Mapping[int, dict]
    ) -> None:
        """Stores new values of some leaves of memories, between steps.

        Args:
          position: of the worker among those of this process.
          read: by ordinal and name, the present values of all leaves of these memories.
          nexts: by ordinal and name, the new values.
        """
        given, result = (Share([], memory, {}, None) for memory in (read, nexts))
        for change in slots.changes(position, given, result):
            change.store()

    @staticmethod
    def _alone(counter: tf.Variable, result: Share) -> tf.Tensor | None:
        """Whether no other thread has run the same traced step meanwhile; None for an eager step.

        A traced step runs without Python, so only its own operations can find that out: the counter
        of committed steps goes up last, and is compared when all results of this step are there.
        Eager steps take turns (`aggregation.turns`).
        """
        if tf.executing_eagerly():
            return None
        results = tf.nest.flatten([result.memory, result.compressor], expand_composites=True)
        # Many results are of one node, which needs to be named once.
        with tf.control_dependencies({id(result.op): result.op for result in results}.values()):
            return tf.equal(counter, result.step)

    def leaves(self, kind: str, ordinal: int, made_by: Memory | Compressor) -> dict[str, Leaf]:
        """The leaves that this memory or compressor has for a variable, by name."""
        for owner, leaves in self._slots.get((kind, ordinal), []):
            if owner.made_by == made_by:
                return leaves
        return {}

    @property
    def variables(self) -> list[tf.Variable]:
        """All variables, each once, leaf by leaf in the order of creation, worker by worker."""
        return whole_variables(v for leaf in list(self._leaves.values()) for v in leaf.variables)

    @property
    def alike_variables(self) -> list[tf.Variable]:
        """The variables that are equal on all workers, from the first worker of this process."""
        alike = [leaf for leaf in list(self._leaves.values()) if leaf.alike]
        return whole_variables(variable for leaf in alike for variable in leaf.variables[:1])

    def realign(self) -> None:
        """Resets the leaves that are valid only as a set over all workers, with a warning."""
        together = [leaf for leaf in list(self._leaves.values()) if leaf.set_valued]
        for leaf in together:
            leaf.start()
        if together:
            self._warn(
                f"Some workers have restored their state of the memory {together[0].owner.method} "
                "and others have not: all start from zero."
            )

    @property
    def counter(self) -> tf.Variable:
        """The variable that counts the committed steps of this process's first worker."""
        return self._leaves["step"].variables[0]

    @property
    def choices(self) -> list[tf.Variable]:
        """What "auto" has chosen, int64 [10], equal on all workers: a variable for each of them."""
        return list(self._own_alone(CHOICE)[""].variables)

    @property
    def sample(self) -> tf.Variable:
        """What "auto" has measured last, float64 [3], by the first worker of this process."""
        return self._own_alone(SAMPLE)[""].variables[0]

    @property
    def step(self) -> int:
        """Committed steps of the first worker of this process, also right after a restore."""
        if self._leaves:
            return int(self._leaves["step"].rows()[0])
        waiting = self._restored.leaves.get("step")
        return 0 if waiting is None else int(waiting.rows[0])

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays to save: rows of leaves by name, the workers' numbers, and the table."""
        restored = self._restored
        if not self._leaves and restored.leaves:
            first = next(iter(restored.leaves.values()))
            rows = {stem: saved.rows for stem, saved in restored.leaves.items()}
            return packed(rows, first.size, first.workers, restored.table)
        table = self._described()
        rows = restored.unused(self.size, self.workers, table)
        rows.update((stem, leaf.rows()) for stem, leaf in list(self._leaves.items()))
        return packed(rows, self.size, self.workers, table)

    def _described(self) -> Table:
        made = {stem: leaf.owner.method for stem, leaf in list(self._leaves.items())}
        return Table(self._registry.table, made)

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restores saved arrays, for leaves that exist and for leaves that are made later.

        A leaf is matched by the name of its variable (`variable_registry.matched`); format 1 has no
        names, there by its ordinal.  The same worker of a world of the same size gets exactly its
        own state back.  Where the size has changed and the states of all workers are in the file,
        every worker gets their mean (for leaves equal on all workers, the state itself).  A worker
        that is not in the file gets zero residuals and a warning; other leaves start anew.
        """
        leaves, table = unpacked(arrays)
        self._restored = Restored(self._registry, leaves, table)
        self._take_all(leaves)

    def lose(self, source: str, steps: int = 1) -> None:
        """Starts anew, since `source` holds no state; warns if `steps`, when saved, were not 0."""
        self._restored = Restored(self._registry)
        for leaf in list(self._leaves.values()):
            leaf.start()
        self._lost = (
            f"{source} holds no compression state: residuals start from zero, so training goes on "
            "a little differently from a run that was not interrupted."
            if steps
            else ""
        )
        if any(stem != "step" for stem in self._leaves):
            self._tell_loss()

    def adopt(self, leaf: Leaf, saved: Saved) -> bool:
        """Gives every worker of this process its part of a saved leaf, if the shape fits."""
        with tf.init_scope():
            rows = leaf.form(saved.rows)
            if rows is None:
                misfit = (
                    f"The saved state {leaf.stem} has the shape {saved.rows.shape[1:]}, this one "
                    f"{leaf.shape}: it is of "
                )
                if leaf.owner.kind == "memory":  # which has the shape of its variable
                    raise ValueError(
                        f"{misfit}another model, or the model's variables came in another order."
                    )
                earlier = leaf.owner == CHOICE
                of = "an earlier version" if earlier else "a method with other hyperparameters"
                self._warn(f"{misfit}{of}, and starts anew.")
                leaf.start()
                return False
            leaf.take(dataclasses.replace(saved, rows=rows), self.size, self.workers, self._warn)
        return True

    def _take_all(self, saved: Container[str]) -> None:
        """Gives every leaf its restored value; leaves not among the saved names start anew."""
        self._lost = ""
        self._warned.clear()
        for leaf in list(self._leaves.values()):
            if self._restored.stem(leaf) not in saved:
                leaf.start()
            self._take(leaf)

    def _take(self, leaf: Leaf) -> None:
        """Gives a leaf its restored value, if there is one."""
        stem = self._restored.stem(leaf)
        if stem in self._restored.leaves:
            if self.adopt(leaf, self._restored.leaves[stem]):
                del self._restored.leaves[stem]
        elif unknown := self._restored.unknown(leaf.owner):
            self._warn(
                f"The restored state knows no variable {unknown}: where it and others have "
                "compression state, that starts from zero."
            )
        for name in self._restored.children(leaf):
            self._handle_deferred_dependencies(name=name, trackable=leaf)

    def _own_alone(self, owner: SlotOwner) -> dict[str, Leaf]:
        """The leaves of an owner that shares nothing with others."""
        made: list[Fresh] = []
        leaves = self._own(owner, made)
        self._begin(made)
        return leaves

    def _own(self, owner: SlotOwner, made: list[Fresh], staged: bool = False) -> dict[str, Leaf]:
        """An owner's leaves; new ones are added to `made` and have no variables yet.

        Without `staged` the leaves of other owners of the same variables are forgotten.
        """
        known = self._slots.get(owner.key, [])
        for other, leaves in known:
            if other == owner:
                return leaves
        first = owner.first()
        if first and owner.ordinals:
            self._tell_loss()
        leaves = {}
        for name, value in first.items():
            leaf_name = owner.leaf_name(name, value.shape, value.dtype.name)
            stem = stem_of(owner, leaf_name, self._registry.name)
            leaf = self._leaves.get(stem)
            if leaf is None or not leaf.fits(owner, value):
                known = [each for each in known if leaf not in each[1].values()]
                leaf = self._leaves[stem] = Leaf(self, owner, name, stem, value)
                made.append(Fresh(leaf, value, self._devices(owner)))
            leaves[name] = leaf
        self._slots[owner.key] = [*(known if staged else ()), (owner, leaves)]
        return leaves

    def _begin(self, made: Sequence[Fresh]) -> None:
        """Makes the variables of new leaves, with the first or the restored values."""
        with tf.init_scope():
            give_variables(made, self.workers)
            for each in made:
                self._take(each.leaf)

    def _devices(self, owner: SlotOwner) -> Sequence[str | None]:
        """Where the leaves of each worker lie.

        What belongs to no variable, as the step counter, lies in the host's memory also where the
        worker is a GPU: native operations read it there. But what XLA compiles can read variables
        of its own device alone, so there they lie where the first step was compiled.
        """
        graph = tf.compat.v1.get_default_graph()
        if not owner.ordinals and not control_flow_util.GraphOrParentsInXlaContext(graph):
            return [host_of(device) for device in self.devices]
        if not owner.ordinals or len(self.workers) > 1:
            return self.devices  # each of several workers computes on its own device
        return [self._registry.device(owner.ordinals[0]) or self.devices[0]]

    def _tell_loss(self) -> None:
        if self._lost:
            warnings.warn(self._lost, stacklevel=3)
        self._lost = ""

    def _warn(self, sentence: str) -> None:
        """Gives each warning at most once after a restore."""
        kind = sentence.split(":")[-1]
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(sentence, stacklevel=3)

    def _serialize_to_tensors(self):
        return {"table": tf.constant(self._described().text())}

    def _restore_from_tensors(self, restored):
        table = Table.of(restored["table"].numpy())
        self._restored = Restored(self._registry, {}, table)
        self._take_all(table.made)
        return {}  # a SavedModel cannot run it

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        # As for an Aggregator: SavedModels hold no compression state, only checkpoints do.
        return dict(self._leaves) if save_type == "checkpoint" else {}

    def _lookup_dependency(self, name, cached_dependencies=None):
        """The leaf of this name in a checkpoint; leaves that the table matches are restored later.

        Format 1 has no table, and names that hold ordinals.
        """
        old = _FORMAT_1.fullmatch(name)
        if old:
            slots = self._slots.get((old[2], int(old[1])), [(None, {})])
            return slots[-1][1].get(old[3])
        return self._leaves.get(name) if name == "step" else None
