"""Keras' own optimizers, of any generation: which there are, which stand in others, and when they
update variables.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from grace_tf.keras.repairs import KERAS_3
from grace_tf.line.inputs import local, plain

_ignoring: set[type] = set()


def bases() -> tuple[type, ...]:
    """The classes that all optimizers of this Keras derive from."""
    if KERAS_3:
        return (keras.optimizers.Optimizer,)
    return (keras.optimizers.Optimizer, keras.optimizers.legacy.Optimizer)


def after_aggregates(
    strategy: tf.distribute.Strategy, grads_and_vars: Sequence[tuple[Any, Any]]
) -> AbstractContextManager:
    """A context in which the updates of an optimizer wait for these aggregates.

    Else TensorFlow computes early what an update makes of the optimizer's slots alone, such as
    momentum · velocity.  For all variables together that is as many bytes as the gradient, and they
    would lie in memory beside the gradients, the residuals and the aggregates.
    """
    grads = [g for g, _ in grads_and_vars if g is not None]
    # The first stands for all: no aggregate is there before all are.
    waits = [t for g in grads[:1] for t in strategy.experimental_local_results(g)]
    return tf.control_dependencies(waits)


def innermost(optimizer: Any) -> Any:
    """The optimizer inside those that scale losses."""
    while "LossScaleOptimizer" in type(optimizer).__name__ and hasattr(
        optimizer, "inner_optimizer"
    ):
        optimizer = optimizer.inner_optimizer
    return optimizer


def is_horovods(optimizer: Any) -> bool:
    """Whether `hvd.DistributedOptimizer` made this optimizer: it reduces gradients itself."""
    # Its class is made anew for each optimizer; this is how Horovod itself tells.
    return hasattr(optimizer, "_HAS_AGGREGATE_GRAD") and hasattr(optimizer, "register_local_var")


def parts(optimizer: Any) -> list[Any]:
    """The optimizers among which a MultiOptimizer deals the variables; none of any other."""
    if not deals_out(type(optimizer)):
        return []
    given = (
        optimizer.optimizers
        if KERAS_3
        else [spec["optimizer"] for spec in optimizer.optimizer_specs]
    )
    return list({id(part): part for part in map(innermost, given)}.values())


def deals_out(cls: type) -> bool:
    """Whether a class deals variables out to others: the MultiOptimizer of Keras or addons."""
    return any(base.__name__ == "MultiOptimizer" for base in cls.__mro__)


def ignore_in_configs(cls: type, key: str, unless: type) -> None:
    """Lets `from_config` of an optimizer class take a config with a key that it does not know.

    Subclasses of `unless` know it.
    """
    owner = next(base for base in cls.__mro__ if "from_config" in vars(base))
    own = vars(owner)["from_config"]
    if owner in _ignoring or not isinstance(own, classmethod):
        return

    @functools.wraps(own.__func__)
    def from_config(cls, config, *args, **kwargs):
        if not issubclass(cls, unless):
            config = {name: value for name, value in config.items() if name != key}
        return own.__func__(cls, config, *args, **kwargs)

    owner.from_config = classmethod(from_config)
    _ignoring.add(owner)


def iterations_of(optimizer: weakref.ref) -> tf.Tensor:
    """How many updates an optimizer has made, in any context of a strategy."""
    with tf.init_scope():  # legacy optimizers make the counter when it is first asked for
        counter = optimizer().iterations
    own, every = optimizer(), getattr(optimizer(), "gradient_accumulation_steps", None)
    if every:  # Keras 3 computes `iterations` then, and may not do so outside the replicas
        counter = own._iterations
    count = local(plain(counter)).read_value()
    return count // every if every else count
