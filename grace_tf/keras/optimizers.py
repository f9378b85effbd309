"""Helpers for Keras' optimizers of any generation: their base classes, their inner optimizers, and
the moment at which they update variables.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from grace_tf.keras import flavours
from grace_tf.keras.flavours import Flavour
from grace_tf.line.inputs import local, plain

_ignoring: set[type] = set()


def bases() -> tuple[type, ...]:
    """The classes that all optimizers derive from, of each Keras that is imported."""
    return tuple(base for keras in flavours.imported() for base in bases_in(keras))


def bases_in(keras: Flavour) -> tuple[type, ...]:
    """The classes that all optimizers of a Keras derive from."""
    optimizers = keras.module.optimizers
    if keras.is_3:
        return (optimizers.Optimizer,)
    return (optimizers.Optimizer, optimizers.legacy.Optimizer)


def after_aggregates(
    strategy: tf.distribute.Strategy, grads_and_vars: Sequence[tuple[Any, Any]]
) -> AbstractContextManager:
    """A context in which the updates of an optimizer wait for these aggregates.

    Otherwise TensorFlow computes early the terms that need only slots, such as momentum · velocity.
    For all variables together they have the size of the gradient, and would occupy memory at the
    same time as the gradients, the residuals and the aggregates.
    """
    grads = [g for g, _ in grads_and_vars if g is not None]
    # One aggregate is enough: all of them are ready at the same time.
    waits = [t for g in grads[:1] for t in strategy.experimental_local_results(g)]
    return tf.control_dependencies(waits)


@contextlib.contextmanager
def unchanged_errors() -> Iterator[None]:
    """Keras leaves the messages of errors that are raised inside as they are.

    It would put them between lines on its own `Cond.call()`, in which an optimizer aggregates with
    gradient_accumulation_steps or inside a LossScaleOptimizer.
    """
    try:
        yield
    except Exception as error:
        error._keras_call_info_injected = True  # Keras' own mark, so that it adds lines only once
        raise


@contextlib.contextmanager
def of_one_strategy(optimizer: Any) -> Iterator[None]:
    """Gives TensorFlow's error a sentence where slots and variables are of different strategies."""
    try:
        yield
    except RuntimeError as error:
        if "Mixing different tf.distribute.Strategy" not in str(error):
            raise
        raise RuntimeError(
            f"This {type(optimizer).__name__} was made outside of the scope in which the variables "
            "were made that it trains: make and wrap it inside `with strategy.scope():`, as the "
            "model."
        ) from error


def innermost(optimizer: Any) -> Any:
    """The optimizer inside LossScaleOptimizers and TF Model Garden's ExponentialMovingAverage."""
    while (inner := _by_which_it_applies(optimizer)) is not None:
        optimizer = inner
    return optimizer


def _by_which_it_applies(optimizer: Any) -> Any:
    """The optimizer by which this one applies gradients; None where it does so itself."""
    if "LossScaleOptimizer" in type(optimizer).__name__:
        return getattr(optimizer, "inner_optimizer", None)
    # The averages of tensorflow-addons have an `_optimizer` as well, but aggregate themselves.
    if any(base.__name__ == "ExponentialMovingAverage" for base in type(optimizer).__mro__):
        return getattr(optimizer, "_optimizer", None)
    return None


def is_horovods(optimizer: Any) -> bool:
    """Whether `hvd.DistributedOptimizer` made this optimizer: it reduces gradients itself."""
    # Horovod makes a new class for each optimizer; Horovod itself recognises it in this way.
    return hasattr(optimizer, "_HAS_AGGREGATE_GRAD") and hasattr(optimizer, "register_local_var")


def parts(optimizer: Any) -> list[Any]:
    """The inner optimizers of a MultiOptimizer; an empty list for other optimizers."""
    if not deals_out(type(optimizer)):
        return []
    given = (
        optimizer.optimizers
        if flavours.flavour_of(optimizer).is_3
        else [spec["optimizer"] for spec in optimizer.optimizer_specs]
    )
    return list({id(part): part for part in map(innermost, given)}.values())


def deals_out(cls: type) -> bool:
    """Whether it gives its variables to inner optimizers: MultiOptimizer of Keras or addons."""
    return any(base.__name__ == "MultiOptimizer" for base in cls.__mro__)


def ignore_in_configs(cls: type, key: str, unless: type) -> None:
    """Makes `from_config` of an optimizer class ignore a key, except in subclasses of `unless`."""
    owner = next(base for base in cls.__mro__ if "from_config" in vars(base))
    original = vars(owner)["from_config"]
    if owner in _ignoring or not isinstance(original, classmethod):
        return

    @functools.wraps(original.__func__)
    def from_config(cls, config, *args, **kwargs):
        if not issubclass(cls, unless):
            config = {name: value for name, value in config.items() if name != key}
        return original.__func__(cls, config, *args, **kwargs)

    owner.from_config = classmethod(from_config)
    _ignoring.add(owner)


def micro_batches_of(optimizer: Any, hierarchical: bool | str) -> int:
    """How many micro-batches the memories of an optimizer may see before each step.

    It is 1 where Keras clips the mean of their gradients, since these are not clipped themselves,
    and with `hierarchical`, where a memory is a host's, and not a process's.
    """
    count = getattr(optimizer, "gradient_accumulation_steps", None)  # not in the first Keras 3
    if hierarchical:
        return 1
    limits = (getattr(optimizer, k) for k in ("clipnorm", "clipvalue", "global_clipnorm"))
    return count if count and all(limit is None for limit in limits) else 1


def iterations_of(optimizer: weakref.ref) -> tf.Tensor:
    """The number of updates that an optimizer has made, in any context of a strategy."""
    with tf.init_scope():  # legacy optimizers make the counter at its first use
        counter = optimizer().iterations
    referent, every = optimizer(), getattr(optimizer(), "gradient_accumulation_steps", None)
    if every:  # Keras 3 then computes `iterations`, which fails outside the replicas
        counter = referent._iterations
    count = local(plain(counter)).read_value()
    return count // every if every else count
