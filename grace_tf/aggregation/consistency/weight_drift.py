"""Compares the weights of all workers again during training.

After the comparison of the first step, a weight may still change on one worker only.  So every few
steps, early ones more often, each worker sends a digest of its variables' values and its
optimizer's settings to the others over the lifeline, and once more when the process ends.  There is
no collective, and no worker waits.  Where they differ, all workers stop with one sentence.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from grace_tf.aggregation.consistency.plan_handshake import (
    OptimizerInfo,
    digests_of_settings,
    float_word,
)
from grace_tf.aggregation.state import variable_nodes
from grace_tf.aggregation.state.conditions import cond
from grace_tf.aggregation.state.slots import variables_of
from grace_tf.line.inputs import local, plain
from grace_tf.line.plan import Plan
from grace_tf.transports.lifeline import lifeline
from grace_tf.transports.lifeline.farewells import counted

_TOPIC = "weights"
_MARK = "_grace_checked"  # on variables that a step compares
_MOST = 100  # plans that are compared when the process ends: a message must not be too long
_ROW = 1024  # words that are added up at once


class _Watched:
    """The weights that one plan trains in this process, held weakly, and the steps taken so far."""

    def __init__(self, variables: Sequence[Any]) -> None:
        (self.steps,) = variables_of("watched", np.int64(0), [0], ["CPU:0"])
        self.compared = 0  # the number of steps after which `fit` compared last
        self._variables = [weakref.ref(v) for v in variables]

    def variables(self) -> list[Any]:
        """The variables; an empty list once one is deleted."""
        found = [ref() for ref in self._variables]
        return [] if any(v is None for v in found) else found


# Returns the name of the callback that has set the learning rate last, or "".  grace_tf.keras sets
# it.
rate_set_by: Callable[[], str] = str

# By label of the plan, until it is deleted.  The garbage collector may delete one at any time, in
# any thread, so loops go over a copy.
_watched: dict[str, _Watched] = {}
# The plan and weights that began to train last.  A loop's may be local to a function, and are
# compared when the process ends, so they are held until others train.
_last: list[Any] = []


def watch(
    plan: Plan, variables: Sequence[Any], optimizer_info: Callable[[], OptimizerInfo]
) -> None:
    """Compares after 1, 2, 4, 8 … steps with this plan, then after every `check_every`.

    Every step calls it, before its update.  Workers take the same steps, so their counts are
    equal.  A step without a comparison costs one condition; a comparison reads each weight
    once, and the optimizer's settings.
    """
    line = lifeline.current()
    if line is None or not plan.check_every:
        return
    label = f"{plan.digest}/{plan.first_key}"
    if label not in _watched:
        _begin(plan, label, [plain(v) for v in variables])
    steps = _watched[label].steps

    def send(done: np.ndarray, *values: np.ndarray) -> np.ndarray:
        when = f"after {counted(int(done))} of this run"
        info = optimizer_info()
        compare_weights(line, f"{label}/{int(done)}", when, _digest(values), [info])
        return np.bool_(True)

    def compare():
        sent = tf.numpy_function(send, [done, *_values(variables)], tf.bool)
        with tf.control_dependencies([sent]):
            return tf.constant(True)

    done = steps.read_value()
    with tf.control_dependencies([done]):
        steps.assign_add(1, read_value=False)
    early = (done < plan.check_every) & tf.equal(tf.bitwise.bitwise_and(done, done - 1), 0)
    due = (done > 0) & (early | tf.equal(done % plan.check_every, 0))
    cond(due, compare, lambda: tf.constant(False))


def _begin(plan: Plan, label: str, variables: list[Any]) -> None:
    for variable in variables:
        setattr(variable, _MARK, True)
    _watched[label] = _Watched(variables)
    _last[:] = [plan, *variables]
    weakref.finalize(plan, _watched.pop, label, None).atexit = False
    lifeline.at_goodbye(_tell_the_end, _verdict)


def steps_begun() -> dict[str, int]:
    """The number of steps that have begun with each plan, by a label that all workers share."""
    with tf.init_scope():  # a step may be traced here
        return {label: int(watched.steps.numpy()) for label, watched in _watched.copy().items()}


def checked(variable: Any) -> bool:
    """Whether steps of this process compare the variable between processes."""
    return getattr(plain(variable), _MARK, False)


def compare_weights(
    line: Any, label: str, when: str, digest: int, infos: Sequence[OptimizerInfo]
) -> None:
    """Sends this worker's digest and its optimizers' settings to the others.

    Stops all where one differs from worker 0.  `label` names the comparison on all workers; `when`
    names the moment in the error message.
    """
    settings = [
        (info.optimizer, float_word(info.rate or 0.0), digests_of_settings(info)) for info in infos
    ]
    message = [label, when, digest, settings, rate_set_by()]
    with line.changed:
        line.on(_TOPIC, functools.partial(_hear, line))
        line.tell(_TOPIC, message)
        _hear(line, line.rank, message)


def compare_in_fit(
    line: Any, label: str, when: str, weights: Sequence[Any], infos: Sequence[OptimizerInfo]
) -> None:
    """Compares a model's weights; then the end of the process need not, unless it trains on.

    Only weights after equally many steps are compared: where a worker has ended its epoch earlier,
    weights must differ, and the comparison of steps tells the cause.
    """
    held, steps = {id(plain(v)) for v in weights}, []
    for watched in _watched.copy().values():
        variables = watched.variables()
        if variables and all(id(v) in held for v in variables):
            watched.compared = int(watched.steps.numpy())
            steps.append(watched.compared)
    label = f"{label}/{sum(steps)}"
    compare_weights(line, label, when, digest_of_weights(weights), infos)


# The comparison when the process ends.  Only worker 0 waits: it ends some seconds after the others.
# Of two workers, the one that ends later knows both digests.

_ends: dict[int, dict[str, int]] = {}  # by worker: digests by label and number of steps


def _tell_the_end() -> None:
    """Sends the digests of all weights that were trained after their last comparison."""
    line, digests = lifeline.current(), {}
    for label, watched in [*_watched.copy().items()][-_MOST:]:
        steps, variables = int(watched.steps.numpy()), watched.variables()
        if variables and steps > watched.compared:
            digests[f"{label}/{steps}"] = digest_of_weights(variables)
    with line.changed:
        line.on("end", _ends.__setitem__)
        line.tell("end", digests)
        _ends[line.rank] = digests


def _verdict() -> str | None:
    """The sentence where weights differ from worker 0's, by what has come until now."""
    line = lifeline.current()
    with line.changed:
        first = _ends.get(0, {})
        odd = [
            str(worker)
            for worker, digests in sorted(_ends.items())
            if any(first.get(label, digest) != digest for label, digest in digests.items())
        ]
    return _sentence(odd, line.size, "at the end of the program") if odd else None


def digest_of_weights(variables: Sequence[Any]) -> int:
    """A digest of the variables' bits, 64 of them: a sum of their words, each with an odd weight.

    Every place of every variable has a weight of its own, so words that change places count too.
    A difference in one word always changes the digest; others escape it about once in 2^32.  All
    is exact modulo 2^64, so no order of additions matters, and every machine gets the same.
    """
    return _digest([value.numpy() for value in _values(variables)])


def _values(variables: Sequence[Any]) -> list[tf.Tensor]:
    """The variables' values, in the host's memory and of types that NumPy can get."""
    held = [local(plain(v)) for v in variables]
    resources = [i for i, v in enumerate(held) if isinstance(v, ResourceVariable)]
    with tf.device("CPU:0"):
        read = dict(zip(resources, variable_nodes.read([held[i] for i in resources])))
        values = [read[i] if i in read else v.read_value() for i, v in enumerate(held)]
        # The types of 8 bits for floats become float32, which is exact.
        narrow = [value.dtype.size == 1 and value.dtype.is_floating for value in values]
        return [tf.cast(v, tf.float32) if is_one else v for v, is_one in zip(values, narrow)]


def _digest(values: Sequence[np.ndarray]) -> int:
    words = [value.ravel().view(f"i{min(value.itemsize, 4)}") for value in values]
    return _summed(np.array([_summed(each, "words") for each in words], np.int64), "variables")


def _summed(words: np.ndarray, what: str) -> int:
    """The weighted sum of integers modulo 2^64: of rows first, then of their sums, likewise."""
    for level in itertools.count():
        weights = _weights(f"{what} {level}")
        rows, rest = np.split(words, [words.size // _ROW * _ROW])
        # Unlike a product of matrices it makes no int64 of all words first.
        words = np.einsum("ij,j->i", rows.reshape([-1, _ROW]), weights)
        if rest.size or not words.size:
            words = np.append(words, np.int64(np.einsum("j,j->", rest, weights[: rest.size])))
        if words.size == 1:
            return int(words[0])


@functools.cache
def _weights(name: str) -> np.ndarray:
    """The weights of a row: bits of a hash, so the same on every machine."""
    return np.frombuffer(hashlib.shake_128(name.encode()).digest(8 * _ROW), "<i8") | 1


_received: dict[tuple[int, str], dict[int, Any]] = {}  # (lifeline, label): messages by worker


def _hear(line: Any, worker: int, message: Sequence[Any]) -> None:
    label, when, digest, settings, set_by = message
    received = _received.setdefault((id(line), label), {})
    received[worker] = digest, settings, set_by
    if len(received) < line.size:
        return
    del _received[id(line), label]
    for other in range(1, line.size):
        for mine, theirs in zip(received[0][1], received[other][1]):
            if differs := _other_settings(mine, theirs, other):
                setters = [f"{received[w][2]} on worker {w}" for w in (0, other) if received[w][2]]
                cause = _set(mine, theirs, setters)
                line.stop(
                    f"Workers cannot go on, {differs} {when}: {cause}; set it alike on all workers."
                )
    odd = [str(each) for each in sorted(received) if received[each][0] != received[0][0]]
    if odd:
        line.stop(_sentence(odd, line.size, when))


def _other_settings(first: Sequence[Any], other: Sequence[Any], worker: int) -> str | None:
    name, rate, settings = first
    if rate != other[1]:
        first_rate, other_rate = (np.int64(word).view(np.float64) for word in (rate, other[1]))
        return (
            f"the learning rate is {first_rate:g} on worker 0 and {other_rate:g} on worker {worker}"
        )
    for key, digest in settings.items():
        if other[2].get(key, digest) != digest:
            return f"the setting {key} of {name} is another one on worker {worker} than on worker 0"
    return None


def _set(first: Sequence[Any], other: Sequence[Any], setters: Sequence[str]) -> str:
    """Who has set what differs; `setters`: the callbacks known to have set the learning rate."""
    if first[1] == other[1] or not setters:
        return "something has set it on one worker alone, such as a callback"
    return f"it was set by {' and by '.join(setters)}"


def _sentence(odd: Sequence[str], size: int, when: str) -> str:
    return (
        f"The weights of worker {', '.join(odd)} of {size} differ from worker 0's {when}: "
        "something has changed on one worker alone, such as a learning rate that a callback sets "
        "or a bit of its memory, or their hardware computes differently (then check_every=0 lets "
        "them train on)."
    )
