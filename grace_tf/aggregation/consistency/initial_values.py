"""Compares, before the first step, the values that must be the same on all workers.

The workers compare digests of the variables of the model, of its optimizer and of the compression
state.  The comparison is eager, also while TensorFlow traces a graph.  Where only values differ,
all workers take worker 0's, as PyTorch's DistributedDataParallel does, and one log line says so.
That is exact, since no step has been applied yet.  Where it would hide a mistake or a damaged file,
every worker raises the same sentence.
"""

from __future__ import annotations

import dataclasses
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from grace_tf.aggregation.consistency.plan_handshake import (
    OptimizerInfo,
    digest_of_text,
    digest_of_variables,
    float_word,
)
from grace_tf.aggregation.state.state import State
from grace_tf.line.inputs import has_value, local, plain
from grace_tf.transports.group import Group

_LOG = logging.getLogger("grace_tf")

_CANNOT = "Workers cannot train together"


def _no_model() -> tuple[Sequence[Any], Sequence[Any], int]:
    return (), (), 0


# Returns (weights, statistics, root): the variables of the model in training, also those without
# gradients, and the worker whose values count.  grace_tf.keras sets it.
model_in_training: Callable[[], tuple[Sequence[Any], Sequence[Any], int]] = _no_model


@dataclasses.dataclass(frozen=True)
class Row:
    """The facts of one worker that are compared; all but `step`, `rate` and `restored` are digests.

    `structure`: the number and shapes of the variables.  `weights`: the trained variables, also
    those of frozen layers.  `statistics`: the model's other variables, such as BatchNorm's
    averages.  `optimizer`: the optimizer's variables.  `step` and `state`: of the compression.
    `rate`: the learning rate's bits.  `restored`: 1 where the state has steps that were
    taken before this process compared anything, and none since, else 0.
    """

    structure: int
    weights: int
    statistics: int
    optimizer: int
    step: int
    state: int
    rate: int
    restored: int


@dataclasses.dataclass(frozen=True)
class Taken:
    """Which values the other workers take from worker `root`."""

    weights: bool = False
    statistics: bool = False
    optimizer: bool = False
    state: bool = False
    restored: int = 0  # the step of the training state that only worker `root` had restored

    @property
    def parts(self) -> tuple[bool, ...]:
        """Flags in the order of (weights, statistics, optimizer, state)."""
        return self.weights, self.statistics, self.optimizer, self.state


def decide(rows: Sequence[Row], root: int = 0) -> Taken:
    """Which values all workers must take from worker `root`; the same answer on every worker.

    Raises RuntimeError where taking worker `root`'s values would not help.
    """
    first, size = rows[root], len(rows)

    def odd(field: str) -> list[int]:
        return [w for w, row in enumerate(rows) if getattr(row, field) != getattr(first, field)]

    restored = [w for w in odd("step") if rows[w].step > 0]
    if restored and (first.step == 0 or odd("weights")):
        raise RuntimeError(f"{_CANNOT}, {_of_other_steps(rows, root, restored[0])}.")
    if odd("structure"):
        raise RuntimeError(
            f"{_CANNOT}, their models or optimizers have different variables: make the same model "
            "everywhere, and restore it everywhere where one worker does "
            f"({_differs(odd('structure'), size, root)})."
        )
    if odd("step"):
        return Taken(True, True, True, True, restored=first.step)
    # Else a worker without a state of its own has just taken that of worker `root`, and variables
    # that are made after that follow.
    resumed = all(row.restored for row in rows)
    if resumed and odd("weights"):
        raise RuntimeError(_of_other_values("weights", first.step, odd("weights"), size, root))
    if odd("rate"):
        other = odd("rate")[0]
        raise RuntimeError(
            f"{_CANNOT}, their learning rates differ, {_rate(first)} on worker {root} and "
            f"{_rate(rows[other])} on worker {other}: give the optimizer the same one everywhere."
        )
    if resumed and odd("optimizer"):
        what = "optimizer's variables"
        raise RuntimeError(_of_other_values(what, first.step, odd("optimizer"), size, root))
    # The statistics of resumed workers may differ, as they do in a run without interruption.
    statistics = first.step == 0 and bool(odd("statistics"))
    return Taken(bool(odd("weights")), statistics, bool(odd("optimizer")), bool(odd("state")))


def _of_other_steps(rows: Sequence[Row], root: int, other: int) -> str:
    step = rows[other].step
    if rows[root].step == 0:
        return (
            f"worker {other} has restored a training state of step {step} and worker {root} has "
            f"none: restore it on worker {root} too"
        )
    return (
        f"they have restored training states of different steps, worker {root} of step "
        f"{rows[root].step} and worker {other} of step {step}: restore files of the same step "
        "everywhere"
    )


def _of_other_values(what: str, step: int, odd: Sequence[int], size: int, root: int) -> str:
    held = "model.variables" if what == "weights" else "model.optimizer.variables"
    return (
        f"{_CANNOT}, they have restored training states of step {step} with different {what} "
        f"({_differs(odd, size, root)}): a file is damaged or of another training; restore "
        f"undamaged files everywhere, or call grace_tf.broadcast({held}) after restoring if the "
        "root's are right."
    )


def _differs(workers: Sequence[int], size: int, root: int) -> str:
    return f"worker {', '.join(map(str, workers))} of {size} differs from worker {root}"


def _rate(row: Row) -> str:
    return f"{np.int64(row.rate).view(np.float64):g}"


class InitialValues:
    """Which variables of an Aggregator the workers have agreed on already."""

    def __init__(self) -> None:
        # By name, which is unique; the entry of a variable goes when the variable is deleted.
        self._agreed: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._settled: list[str] = []  # the variables of the last step that brought nothing new
        self._first: int | None = None  # the step of the state at the first comparison
        self._without_state = False  # whether the state did not exist at the last comparison

    def reach(
        self,
        group: Group,
        state: State,
        variables: Sequence[Any],
        optimizer_info: Callable[[], OptimizerInfo],
        late: bool,
    ) -> None:
        """Compares the values that were not compared before; where they differ, takes worker 0's.

        Called wherever a step is traced or runs.  Variables that are made while a step is traced
        have no values at that moment; TensorFlow traces the step again before it first runs, and
        then they are compared.

        `late` says that gradients have been computed from these weights already, as in an eager
        step.

        Raises RuntimeError, the same on every worker: see `decide`; and where weights differ, but
        it is too late or the group cannot broadcast.
        """
        names = [plain(v)._unique_id for v in variables]
        if late and self._settled == names:
            return  # an eager step with the variables of the last one: nothing is new
        with tf.init_scope():
            weights, statistics, root = model_in_training()
            described = optimizer_info()
            if not group.broadcasts:
                statistics = ()  # under a strategy each replica may have its own statistics
            fresh = [self._fresh([*variables, *weights]), self._fresh(statistics)]
            fresh.append(self._fresh(described.variables))
            alike = state.alike_variables
            if not any(fresh) and not (self._without_state and alike):
                self._settled = names
                return
            self._without_state = not alike
            if self._first is None:
                self._first = state.step
            # Variables that join later may have random values, which all take from one worker.
            restored = state.step == self._first > 0
            row = _row(*fresh, state, described, restored)
            table = group.handshake(dataclasses.astuple(row), "the first step's values")
            taken = decide([Row(*map(int, words)) for words in table], root)
            taking = [v if part else [] for part, v in zip(taken.parts, [*fresh, alike])]
            if any(taken.parts):
                if not group.broadcasts or (late and any(taking[:2])):
                    raise RuntimeError(_refusal(taken, group.broadcasts))
                _take(group, state, taken, taking, root, silently=not any(fresh))
            self._agreed.update({v._unique_id: v for variables in fresh for v in variables})

    def _fresh(self, variables: Sequence[Any]) -> list[tf.Variable]:
        """The variables that have a value and were not compared before, each once."""
        each = {v._unique_id: v for v in map(plain, variables)}
        return [v for name, v in each.items() if name not in self._agreed and has_value(v)]


def _take(
    group: Group, state: State, taken: Taken, taking: Sequence[list], root: int, silently: bool
) -> None:
    """Gives all workers worker `root`'s values of these variables.

    `silently`: log nothing, since an earlier comparison has logged the same.
    """
    wanted = [v for variables in taking for v in variables]
    group.broadcast(wanted, root)
    if taken.state:
        state.realign()
    if not silently:
        _say(group, taken, root, wanted)


def compare_inside(group: Group, state: State) -> None:
    """Raises RuntimeError, on every worker, where workers of one host hold different states.

    With `hierarchical` each of them compresses a piece of the same sum, so states must be equal.
    """
    with tf.init_scope():
        mine = digest_of_variables(state.variables)
    table = group.handshake([mine], "the comparison of states inside hosts")
    first: dict[Any, int] = {}
    for rank, host in enumerate(group.hosts):
        other = first.setdefault(host, rank)
        if table[rank, 0] != table[other, 0]:
            raise RuntimeError(
                f"{_CANNOT}, worker {other} and worker {rank} share a host and hold different "
                "compression states: with hierarchical restore files of the same step on all "
                "workers of a host, or on none."
            )


def _row(
    weights, statistics, optimizer, state: State, optimizer_info: OptimizerInfo, restored: bool
) -> Row:
    groups_of = (weights, statistics, optimizer)
    shapes = [[f"{v.dtype.name}{v.shape}" for v in variables] for variables in groups_of]
    digests = [digest_of_variables([local(v) for v in variables]) for variables in groups_of]
    return Row(
        digest_of_text(str(shapes)),
        *digests,
        state.step,
        digest_of_variables(state.alike_variables),
        float_word(float("nan") if optimizer_info.rate is None else optimizer_info.rate),
        int(restored),
    )


def _refusal(taken: Taken, can_broadcast: bool) -> str:
    what = "training states" if taken.restored else _what(taken)
    if not can_broadcast:
        return (
            f"{_CANNOT}, the {what} differ: restore the same checkpoint on every worker, in the "
            "strategy's scope or by every worker's own call."
        )
    return (
        f"{_CANNOT}, the {what} differ: call grace_tf.broadcast(model.variables) before the first "
        "step."
    )


def _say(group: Group, taken: Taken, root: int, variables: Sequence[tf.Variable]) -> None:
    size = sum(v.shape.num_elements() * v.dtype.size for v in variables)
    if taken.restored:
        _LOG.warning(
            "Only worker %d has the training state of step %d; all workers take its weights, "
            "optimizer and step (%d variables, %d bytes).",
            *(root, taken.restored, len(variables), size),
        )
    elif group.rank == root:
        _LOG.warning(
            "The workers started with different %s; all have taken worker %d's (%d variables, %d "
            "bytes).%s",
            *(_what(taken), root, len(variables), size),
            " This is normal where random seeds differ." if taken.weights else "",
        )


def _what(taken: Taken) -> str:
    if taken.weights:
        return "weights"
    return "statistics" if taken.statistics else "optimizers' variables"
