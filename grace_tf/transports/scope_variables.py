"""Compares the variables that workers make in the scope of a MultiWorkerMirroredStrategy.

The strategy sends the first value of each variable from worker 0 to the others, in the order in
which variables are made.  Where one worker makes another variable, or makes one while the others
run something else, TensorFlow's error names neither the worker nor the cause.  So each worker tells
over the lifeline which variable it makes; nobody waits for that.  A learning rate is such a
variable too, so a worker's own is replaced by worker 0's: a log line says so.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended

from grace_tf.transports.lifeline import lifeline, tensorflow_engine
from grace_tf.transports.lifeline.lifeline import Lifeline

_LOG = logging.getLogger("grace_tf")
_TOPIC = "variables"
_PATIENCE = 1.0  # seconds for the others' messages, once a collective has failed
# The scalars that an optimizer is given as numbers, by the last part of their name; all but the
# first are variables in Keras 2 alone.
_SETTINGS = ("learning_rate", "decay", "momentum", "beta_1", "beta_2", "rho")
_ABSENT = (
    "did not come to strategy.scope(): it was killed, crashed or stopped before, or lost its "
    "machine"
)

_counts: dict[int, int] = {}  # by worker: the number of variables that it has made
_made: dict[int, dict[int, tuple[str, str]]] = {}  # by number and worker: name, shape and dtype


def install() -> None:
    """Replaces the method of the strategy that gives a variable its first value."""
    original = CollectiveAllReduceExtended._get_variable_creator_initial_value

    @functools.wraps(original)
    def first_value_of(self, replica_id, device, primary_var, **kwargs):
        line = lifeline.current()
        if line is None or replica_id or self._num_workers == 1:
            return original(self, replica_id, device, primary_var, **kwargs)
        name, own = str(kwargs.get("name") or "Variable"), []
        kwargs["initial_value"] = _told(line, name, own, kwargs["initial_value"], kwargs)
        make = original(self, replica_id, device, primary_var, **kwargs)
        return functools.partial(_first_value, self, line, name, own, make)

    CollectiveAllReduceExtended._get_variable_creator_initial_value = first_value_of


def _told(line: Lifeline, name: str, own: list, given: Any, kwargs: dict) -> Callable:
    """Returns a function that computes this worker's first value of the variable.

    The function also appends the value to `own`, and tells the other workers the variable's name,
    shape and dtype.
    """
    dtype = kwargs.get("dtype")

    def tell() -> tf.Tensor:
        value = given() if callable(given) else given
        value = tf.convert_to_tensor(getattr(value, "wrapped_value", value), dtype=dtype)
        if tf.executing_eagerly():
            own.append(value)
            message = [_counts.get(line.rank, 0) + 1, name, f"{value.dtype.name} {value.shape}"]
            with line.changed:
                if not _counts:
                    line.looks.append(functools.partial(_look, line))
                line.on(_TOPIC, functools.partial(_hear, line))
                line.tell(_TOPIC, message)
                _hear(line, line.rank, message)
        return value

    return tell


def _hear(line: Lifeline, worker: int, message: list[Any]) -> None:
    number, name, spec = message
    _counts[worker] = number
    made = _made.setdefault(number, {})
    made[worker] = name, spec
    first_name, first_spec = made.get(0, ("", ""))
    for other, (other_name, other_spec) in made.items() if first_name else ():
        if other_spec != first_spec:
            line.stop(
                f"Workers cannot train together, variable {number} of the strategy's scope is "
                f"{first_name} ({first_spec}) on worker 0 and {other_name} ({other_spec}) on "
                f"worker {other}: make and compile the same layers and optimizers in the same "
                "order on all workers."
            )
    if len(made) == line.size:
        del _made[number]


def _first_value(extended: Any, line: Lifeline, name: str, own: list, make: Callable) -> tf.Tensor:
    """The first value by worker 0, which `make()` gives.

    Raises RuntimeError where another worker makes another variable or none, or has not come.
    """
    try:
        value = make()
    except tf.errors.OpError as error:
        sentence = _cause(extended, line, error) if own else None
        if sentence is None:
            raise
    else:
        if own:
            _say(line, name, own[0], value)
        return value
    # Outside the handler, so that TensorFlow's error is not part of the traceback.
    raise RuntimeError(sentence)


def _say(line: Lifeline, name: str, own: tf.Tensor, value: tf.Tensor) -> None:
    """Logs a warning where worker 0's value has replaced this worker's setting of the optimizer."""
    setting = name.rpartition("/")[2]
    if line.rank and setting in _SETTINGS and not own.shape.rank and own.dtype.is_floating:
        here, first = float(own), float(value)
        if here != first:
            _LOG.warning(
                "The %s is %g on worker 0 and %g on worker %d of %d, which takes worker 0's, as "
                "MultiWorkerMirroredStrategy makes variables: give the optimizer the same one "
                "everywhere.",
                *(setting.replace("_", " "), first, here, line.rank, line.size),
            )


def _cause(extended: Any, line: Lifeline, error: tf.errors.OpError) -> str | None:
    """The sentence for an error of TensorFlow where a variable is made; None for other errors."""
    if tensorflow_engine.met_another(error):
        line.until(lambda: not _apart(line), _PATIENCE)  # the others may be about to make it
        _name_the_maker(line)
    sentence = line.why(error)
    if sentence is None and tensorflow_engine.lost_a_peer(error):
        line.lose_the_absent(_unheard(extended, error), _ABSENT)
    return line.broken or sentence


def _apart(line: Lifeline) -> tuple[int, list[int]] | None:
    """A worker that has made more variables than others, and these; None where all are alike."""
    counts = [_counts.get(worker, 0) for worker in range(line.size)]
    others = [worker for worker, count in enumerate(counts) if count < max(counts)]
    return (counts.index(max(counts)), others) if others else None


def _look(line: Lifeline, error: BaseException) -> None:
    """Names the worker that makes a variable, where this one's collective has met that making."""
    if tensorflow_engine.met_another(error):
        line.until(lambda: _apart(line) is not None, _PATIENCE)
        _name_the_maker(line)


def _name_the_maker(line: Lifeline) -> None:
    with line.changed:
        apart = _apart(line)
        if line.broken is not None or apart is None:
            return
        maker, others = apart
        name, _ = _made[_counts[maker]][maker]
        line.stop(
            f"Workers cannot go on: worker {maker} of {line.size} makes a variable ({name}), but "
            f"worker {', '.join(map(str, others))} runs something else, such as a step; all "
            "workers must make, compile and train the same models in the same order, and compile "
            "or change one again on all of them."
        )


def _unheard(extended: Any, error: tf.errors.OpError) -> int | None:
    """The worker that TensorFlow says to be lost, or None where it names none."""
    named = re.search(r"reported from /job:(\w+)/task:(\d+)", str(error))
    if named is None:
        return None
    jobs = extended._container_strategy().cluster_resolver.cluster_spec().as_dict()
    before = len(jobs.get("chief", ())) if named[1] == "worker" else 0
    return before + int(named[2])
