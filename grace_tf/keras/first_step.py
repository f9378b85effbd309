"""What the first step compares of a Keras optimizer and of the model that it trains."""

from __future__ import annotations

import contextlib
import functools
import numbers
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from grace_tf.aggregation.consistency.plan_handshake import Owner
from grace_tf.aggregation.consistency.weight_drift import checked
from grace_tf.keras.optimizers import innermost, is_horovods, parts
from grace_tf.keras.repairs import KERAS_3
from grace_tf.line.inputs import has_value
from grace_tf.transports.find_workers import several

# Settings that may differ: names are counted in each process, and "grace" is compared by the plan.
_FREE = ("name", "grace")


def owner_of(optimizer: Any) -> Owner:
    """Describes an optimizer: class, settings, variables, and its learning rate if a number.

    Raises RuntimeError where Horovod would reduce the gradients too.
    """
    if is_horovods(optimizer):
        raise RuntimeError(
            f"This {type(optimizer).__name__} is wrapped by grace_tf and by "
            "hvd.DistributedOptimizer, and both reduce gradients: use grace_tf.wrap() alone."
        )
    try:
        config = dict(optimizer.get_config())
    except NotImplementedError:  # a user's own optimizer without a config
        config = {}
    for name in _FREE:
        config.pop(name, None)
    rate = config.get("learning_rate")
    if isinstance(rate, numbers.Real):
        rate = float(config.pop("learning_rate"))
    else:
        rate = None
    return Owner(type(optimizer).__name__, config, rate, _variables(optimizer))


def _variables(optimizer: Any) -> list[Any]:
    own = optimizer.variables
    found = list(own() if callable(own) else own)
    # Keras 2 does not count settings that are variables among an optimizer's own.
    settings = [getattr(optimizer, "_learning_rate", None), *_hyperparameters(optimizer)]
    found += [v for v in settings if isinstance(v, tf.Variable)]
    return without_own_gradients(optimizer, found)


def without_own_gradients(optimizer: Any, variables: Sequence[Any]) -> list[Any]:
    """The variables but for those in which an optimizer accumulates gradients.

    Between two exchanges these hold each worker's own gradients, so that they may differ.
    """
    given = innermost(optimizer)
    own = [v for o in (given, *parts(given)) for v in getattr(o, "_accumulated_gradients", ())]
    kept = {id(v) for v in own}
    return [v for v in variables if id(v) not in kept]


def _hyperparameters(optimizer: Any) -> list[Any]:
    return list(getattr(optimizer, "_hyper", {}).values())


def values_of(model: Any) -> tuple[list[Any], list[Any], int]:
    """A model's (weights, statistics) and the worker whose values count; nothing of None.

    Weights are what was made to be trained, of a frozen layer too; statistics are all others, such
    as BatchNorm's averages and float8 layers' scales.
    """
    if model is None:
        return [], [], 0
    weights, statistics = [], []
    for layer in model._flatten_layers():  # as Keras itself collects weights
        if isinstance(layer, keras.metrics.Metric):  # a layer in Keras 2
            continue
        for v in layer._trainable_variables if KERAS_3 else layer._trainable_weights:
            own = getattr(v, "overwrite_with_gradient", False)
            (statistics if own else weights).append(v)
        statistics += layer._non_trainable_variables if KERAS_3 else layer._non_trainable_weights
    return weights, statistics, getattr(model, "_grace_root", 0)


def compared_weights(model: Any) -> list[Any]:
    """The weights that workers compare at the end of an epoch.

    None where no Aggregator has trained any of them here, or all of those that have are told not to
    (`check_every=0`).
    """
    weights = values_of(model)[0]
    return weights if any(map(checked, weights)) else []


def agree_before(model: Any, group: Any) -> None:
    """Compares the values of a built model before its first step, where steps are eager.

    An eager step computes its gradients before workers can compare.
    """
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if inner is None or not (model.built and model.run_eagerly):
        return
    for each in (inner, *parts(inner)):
        aggregator = getattr(each, "_grace", None)
        if aggregator is not None:
            aggregator.agree(group, (), functools.partial(owner_of, each), late=False)


def building(variables: Sequence[Any]) -> contextlib.AbstractContextManager:
    """Where an optimizer makes its variables: outside the traced step of a process group.

    Then they have values when the workers compare, as those of a worker that has restored them.
    An optimizer may start from the values of the model's variables, so these must have them too.
    """
    if several() is None or not all(map(has_value, variables)):
        return contextlib.nullcontext()
    return tf.init_scope()
