"""Finds what the first step compares of a Keras optimizer and of the model that it trains."""

from __future__ import annotations

import contextlib
import functools
import numbers
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from grace_tf.aggregation.consistency.plan_handshake import OptimizerInfo
from grace_tf.aggregation.consistency.weight_drift import checked
from grace_tf.keras.flavours import flavour_of, is_a
from grace_tf.keras.optimizers import innermost, is_horovods, parts
from grace_tf.line.inputs import has_value
from grace_tf.transports.world.current_workers import several

# Settings not compared here: each process numbers names, and the plans compare "grace".
_FREE = ("name", "grace")


def info_of(optimizer: Any) -> OptimizerInfo:
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
    except NotImplementedError:  # a user's optimizer without a config
        config = {}
    for name in _FREE:
        config.pop(name, None)
    rate = config.get("learning_rate")
    if isinstance(rate, numbers.Real):
        rate = float(config.pop("learning_rate"))
    else:
        rate = None
    return OptimizerInfo(type(optimizer).__name__, config, rate, _variables(optimizer))


def _variables(optimizer: Any) -> list[Any]:
    variables = optimizer.variables
    found = list(variables() if callable(variables) else variables)
    # In Keras 2 `optimizer.variables` does not contain all variables of the optimizer: not the
    # learning rate, for example, and not Nadam's `_u_product`.
    others = [*vars(optimizer).values(), *_hyperparameters(optimizer)]
    found += [v for v in others if isinstance(v, tf.Variable)]
    return without_own_gradients(optimizer, found)


def without_own_gradients(optimizer: Any, variables: Sequence[Any]) -> list[Any]:
    """The variables without those in which an optimizer accumulates gradients.

    Between two exchanges these hold one worker's gradients, so they may differ between workers.
    """
    given = innermost(optimizer)
    ids = {id(v) for o in (given, *parts(given)) for v in getattr(o, "_accumulated_gradients", ())}
    return [v for v in variables if id(v) not in ids]


def _hyperparameters(optimizer: Any) -> list[Any]:
    return list(getattr(optimizer, "_hyper", {}).values())


def values_of(model: Any) -> tuple[list[Any], list[Any], int]:
    """A model's (weights, statistics, the worker whose values count); empty lists for None.

    Weights are the variables made for training, also in frozen layers; statistics are all others,
    such as BatchNorm's averages and the scales of float8 layers.
    """
    if model is None:
        return [], [], 0
    weights, statistics = [], []
    is_3 = flavour_of(model).is_3
    for layer in model._flatten_layers():  # as Keras itself collects weights
        if is_a(layer, "metrics.Metric"):  # a layer in Keras 2
            continue
        for v in layer._trainable_variables if is_3 else layer._trainable_weights:
            is_state = getattr(v, "overwrite_with_gradient", False)
            (statistics if is_state else weights).append(v)
        statistics += layer._non_trainable_variables if is_3 else layer._non_trainable_weights
    return weights, statistics, getattr(model, "_grace_root", 0)


def compared_weights(model: Any) -> list[Any]:
    """The weights that workers compare at the end of an epoch.

    It is empty where no Aggregator has trained any of them here, or all that have must not compare
    (`check_every=0`).
    """
    weights = values_of(model)[0]
    return weights if any(map(checked, weights)) else []


def agree_before(model: Any, group: Any) -> None:
    """Compares the values of a built model before its first step, where steps are eager.

    An eager step computes its gradients before workers can compare.
    """
    inner = innermost(getattr(model, "optimizer", None))
    if inner is None or not (model.built and model.run_eagerly):
        return
    for each in (inner, *parts(inner)):
        aggregator = getattr(each, "_grace", None)
        if aggregator is not None:
            aggregator.agree(group, (), functools.partial(info_of, each), late=False)


def builds_early(variables: Sequence[Any]) -> bool:
    """Whether an optimizer that trains these variables makes its own outside of the traced step.

    An optimizer may start from the values of the model's variables, so these must have values.  A
    strategy makes variables in its own way: several processes make each of them together, which
    never ends where their optimizers have different ones.
    """
    strategy = tf.distribute.has_strategy()
    return not (strategy and several() is None) and all(map(has_value, variables))


@contextlib.contextmanager
def building(variables: Sequence[Any]) -> Iterator[None]:
    """A context for making an optimizer's variables outside of the step that is traced.

    The variables then have values when the workers compare, as on a worker that has restored them.
    And TensorFlow does not trace the step a second time, as it does if variables were made in the
    first trace.  Where `builds_early` is False, Keras makes them as it does without grace_tf.
    """
    if not builds_early(variables):
        yield
        return

    def made_at_once(next_creator, **keywords):
        return next_creator(**{**keywords, "experimental_enable_variable_lifting": False})

    alone = not tf.distribute.has_strategy()
    way = tf.variable_creator_scope(made_at_once) if alone else contextlib.nullcontext()
    with tf.init_scope(), way:
        yield
