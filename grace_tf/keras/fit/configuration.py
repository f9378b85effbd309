"""Compares how the workers have made and compiled a model, before it takes a step.

Another loss, activation or dtype policy on one worker changes no shape, so no step would show it.
A LossScaleOptimizer, another `steps_per_execution` or a new optimizer makes collectives that the
other workers never start.  So each worker sends digests to the others over the lifeline, where
`fit` begins and at the first batch after `compile`.  Nobody waits for them.

Workers that run the same program must never differ here.  So nothing is compared that counts up in
a process (names), that differs by purpose (seeds, initial values), that may come from a worker's
own data or disk (long lists, paths), or that this module does not know (arguments of classes that
are not Keras').
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from grace_tf.aggregation.consistency.plan_handshake import digest_of_text
from grace_tf.keras.classes import reducing
from grace_tf.keras.flavours import PACKAGES, flavour_of, is_a
from grace_tf.keras.optimizers import innermost
from grace_tf.transports.lifeline.connections import Lifeline

_TOPIC = "configuration"
_COMPARED = "_grace_compared"  # attribute of what `compile` stores; a new one at each call
_FREE = {"name", "dtype", "seed", "module", "registered_name", "shared_object_id", "vocabulary"}
_FREE |= {"build_config", "build_input_shape", "batch_shape", "batch_input_shape", "input_shape"}
_LONG = 8  # elements; a longer list holds data
_LONG_TEXT = 80  # characters, likewise
_SHOWN = 60  # characters of a setting in an error message
_MOST = 2000  # layers that are compared one by one: a message must not be too long

_batches = itertools.count(1)
# By (lifeline, label), then by worker: what each has sent.
_received: dict[tuple[int, str], dict[int, dict[str, Any]]] = {}


def compare(line: Lifeline, label: str, model: Any) -> None:
    """Sends the facts of a model to the other workers, which do the same under this label.

    Raises RuntimeError where they have come from all workers and differ; where they come later,
    the lifeline ends all workers.  Nothing is compared where no optimizer of the model is wrapped,
    or all that are must not compare (`check_every=0`).
    """
    compiled = getattr(model, "_compile_config", None)
    optimizers = reducing(getattr(model, "optimizer", None))
    if compiled is None or not any(each._settings().check_every for each in optimizers):
        return
    setattr(compiled, _COMPARED, True)
    message = [label, facts_of(model)]
    with line.changed:
        line.on(_TOPIC, functools.partial(_hear, line))
        line.tell(_TOPIC, message)
        _hear(line, line.rank, message)
    line.check()


def compare_batches(line: Lifeline, model: Any) -> None:
    """Compares a model that trains batch by batch, once after each call of `compile`."""
    compiled = getattr(model, "_compile_config", None)
    if compiled is not None and not hasattr(compiled, _COMPARED):
        compare(line, f"batch {next(_batches)}", model)


def facts_of(model: Any) -> dict[str, Any]:
    """The facts of a compiled model that are equal where workers run the same program.

    Returns {fact: [text for a message, digest]}; under "built" a word by which only models are
    compared that are built alike, and under "each" a digest for each layer.
    """
    facts: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # of a user's class; what exists is compared
        _, *layers = _layers_of(model, set())
        built = [bool(layer.built) for layer in layers]
        policies = [_policy_of(layer) for layer in layers]
        facts["dtype policy"] = _fact(", ".join(dict.fromkeys(policies)), policies)
        facts["number of layers"] = _fact(str(len(layers)), len(layers))
        each = [digest_of_text(repr(_settings_of(layer))) % 2**32 for layer in layers]
        facts["each"] = [*each[:_MOST], digest_of_text(repr(each[_MOST:]))]
        facts["built"] = "whole" if all(built) else digest_of_text(repr(built))
    for name, fact in _COMPILED.items():
        with contextlib.suppress(Exception):
            value = fact(model)
            text = value[0] if isinstance(value, tuple) else value
            facts[name] = _fact(str(text), value)
    return facts


def _fact(text: str, value: Any) -> list[Any]:
    return [text[:_SHOWN], digest_of_text(repr(value))]


def _loss_scaling(model: Any) -> str:
    return "with" if "LossScaleOptimizer" in type(model.optimizer).__name__ else "without"


def _history(model: Any) -> tuple[str, list[int]]:
    compared = [each._aggregator().compared for each in reducing(model.optimizer)]
    return "one that has trained" if any(compared) else "new", compared


def _of_outputs(name: str, model: Any) -> Any:
    """A loss or weight, or one for each output, whose name may be one that Keras counts."""
    given = model._compile_config.config[name]
    return plain([*given.values()] if isinstance(given, Mapping) else given)


_COMPILED = {
    "Keras": lambda model: flavour_of(model).package,
    "class of the model": lambda model: type(model).__name__,
    "class of the optimizer": lambda model: type(innermost(model.optimizer)).__name__,
    "loss scaling": _loss_scaling,
    "steps_per_execution": lambda model: model._compile_config.config["steps_per_execution"] or 1,
    "loss": functools.partial(_of_outputs, "loss"),
    "loss_weights": functools.partial(_of_outputs, "loss_weights"),
    "optimizer": _history,
}


def _layers_of(layer: Any, seen: set[int]) -> Iterator[Any]:
    """The layer and all in it, but for those that a layer of Keras makes for itself."""
    if id(layer) in seen or is_a(layer, "metrics.Metric"):  # a layer in Keras 2
        return
    seen.add(id(layer))
    if not is_a(layer, "layers.InputLayer"):  # which Keras adds as it builds a model
        yield layer
    if is_a(layer, "Model") or not _is_keras(type(layer).__module__):
        for inner in layer._flatten_layers(include_self=False, recursive=False):
            yield from _layers_of(inner, seen)


def _policy_of(layer: Any) -> str:
    policy = getattr(layer, "dtype_policy", None)
    return str(getattr(policy, "name", policy))


def _settings_of(layer: Any) -> Any:
    """The class of a layer, and its settings where it is Keras' own."""
    name = type(layer).__name__
    if is_a(layer, "Model") or not _is_keras(type(layer).__module__):
        return name
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras warns of files that would hold a lambda
            return name, plain(layer.get_config())
    except Exception:
        return name


def _is_keras(module: Any) -> bool:
    return str(module).partition(".")[0] in PACKAGES


def plain(value: Any) -> Any:
    """A setting without all that may differ between workers that run the same program."""
    if isinstance(value, Mapping):
        name = value.get("class_name")
        if name is None:
            kept = {k: v for k, v in value.items() if k not in _FREE and "initializer" not in k}
            return [[str(k), plain(v)] for k, v in sorted(kept.items(), key=str)]
        config = value.get("config")
        known = isinstance(config, str) or _is_keras(value.get("module", "keras"))
        return (name, plain(config)) if known and name != "__lambda__" else name
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value] if len(value) <= _LONG else "a long list"
    if isinstance(value, str):
        return value if len(value) <= _LONG_TEXT and not {*value} & {"/", "\\", "<"} else "a text"
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float)):
        return value
    name = getattr(value, "__name__", type(value).__name__)
    if _is_keras(type(value).__module__) and hasattr(value, "get_config"):
        # Some losses leave their arguments out of their config.
        return name, plain(value.get_config()), plain(getattr(value, "_fn_kwargs", None))
    return name


def _hear(line: Lifeline, worker: int, message: list[Any]) -> None:
    label, facts = message
    received = _received.setdefault((id(line), label), {})
    received[worker] = facts
    if len(received) < line.size:
        return
    del _received[id(line), label]
    for other in range(1, line.size):
        if differs := _difference(received[0], received[other], other):
            line.stop(
                f"Workers cannot train together, {differs}: make and compile the same model on "
                "every worker, or give wrap() check_every=0 to compare nothing."
            )


def _difference(first: dict[str, Any], other: dict[str, Any], worker: int) -> str | None:
    built_alike = first.get("built") == other.get("built")
    for name in ("number of layers", "dtype policy", *_COMPILED):
        of_layers = name not in _COMPILED
        if name not in first or name not in other or (of_layers and not built_alike):
            continue
        (here, digest), (there, another) = first[name], other[name]
        if digest != another and here != there:
            return f"the {name} is {here} on worker 0 and {there} on worker {worker}"
        if digest != another:
            return f"the {name} of worker {worker} is not that of worker 0"
    if built_alike and "each" in first and first["each"] != other["each"]:
        pairs = enumerate(zip(first["each"], other["each"]), 1)
        place = next(number for number, (one, another) in pairs if one != another)
        return (
            f"layer {place} of the model of worker {worker} has other settings, such as an "
            "activation or a regularizer, than that of worker 0"
        )
    return None
