"""Lets XLA compile the forward and backward pass of a Keras step, but not its exchange.

XLA can compile neither collectives nor native operations.  A model with `jit_compile=True` and a
compressing optimizer comes in.  Its step goes out in two parts: a function that XLA compiles and
that returns the gradients and the metrics, and the optimizer, which gets the gradients outside of
it.  Only Keras' own `train_step` is split.  In another one, such as that of a GAN, what follows
an optimizer may depend on the new weights.  A step of a strategy's replica is not split either
where its forward pass contains collectives: of a synchronised BatchNormalization, or with Keras 2
of the metrics.

Under a strategy Keras 3 compiles the steps of all replicas as one function, and also those of
`evaluate` and `predict`.  XLA compiles for one device, so there each replica's step is compiled by
itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from grace_tf.keras.classes import reducing
from grace_tf.keras.flavours import Flavour, flavour_of
from grace_tf.keras.replacing import in_place_of
from grace_tf.line.settings import Settings
from grace_tf.transports.world.current_workers import compresses, several

# Models, and the kind of their steps that are made or run now.  All replicas' threads share it.
_splitting: list[tuple[Any, str]] = []


def install(keras: Flavour) -> None:
    """Splits the steps of the models of a Keras."""
    _install(keras.module.Model, "train", can_be_split, _step)
    if keras.is_3:
        for kind in ("test", "predict"):
            _install(keras.module.Model, kind, _compiles_replicas, _compiled)


def can_be_split(model: Any) -> bool:
    """Whether the model's step compresses or exchanges gradients, and can be split."""
    replicas = _has_replicas(model)
    if not _is_own(model, "train") or (replicas and _sums_over_replicas(model)):
        return False
    exchange = several() is not None or replicas
    exchanging = [each for each in _aggregating(model) if exchange or not each.dense]
    return bool(exchanging) or compresses(model.distribute_strategy)


def fails_as_a_whole(model: Any) -> bool:
    """Whether XLA could not compile the whole step of the model, and the step is not split."""
    chooses = any(each.choice for each in _aggregating(model))
    return (chooses or several() is not None) and not can_be_split(model)


def _aggregating(model: Any) -> list[Settings]:
    """The settings of the model's optimizers that aggregate."""
    return [each._settings() for each in reducing(getattr(model, "optimizer", None))]


def _sums_over_replicas(model: Any) -> bool:
    """Whether the forward pass of a replica, or its metrics, contain collectives."""
    layers = model._flatten_layers()
    return not flavour_of(model).is_3 or any(getattr(each, "synchronized", 0) for each in layers)


def _has_replicas(model: Any) -> bool:
    return model.distribute_strategy.num_replicas_in_sync > 1


def _compiles_replicas(model: Any) -> bool:
    return can_be_split(model) and _has_replicas(model)


def _is_own(model: Any, kind: str) -> bool:
    """Whether the model has Keras' own step of this kind."""
    own = flavour_of(model).module.Model
    return getattr(type(model), f"{kind}_step") is getattr(own, f"{kind}_step")


def _install(cls: type, kind: str, wanted: Callable[[Any], bool], take: Callable) -> None:
    held = f"{kind}_function"

    @in_place_of(cls, f"make_{kind}_function")
    def make_function(original, self, *args, **kwargs):
        if not getattr(self, "jit_compile", None) or not (wanted(self) and _is_own(self, kind)):
            return original(self, *args, **kwargs)
        with _not_compiled_as_a_whole(self, kind):
            made = original(self, *args, **kwargs)
        whole = getattr(self, held)
        if getattr(whole, "is_split", False):
            return made

        def function(iterator):
            with _not_compiled_as_a_whole(self, kind):  # Keras 2 asks when it traces the step
                return whole(iterator)

        function.is_split = True
        setattr(self, held, function)
        return function

    @in_place_of(cls, f"{kind}_step")
    def step(original, self, data):
        split = any(model is self and each == kind for model, each in _splitting)
        if not split or tf.executing_eagerly():  # an eager step would be compiled anew each time
            return original(self, data)
        return take(original, self, data)


@contextlib.contextmanager
def _not_compiled_as_a_whole(model: Any, kind: str) -> Iterator[None]:
    before, model._jit_compile = model._jit_compile, False
    _splitting.append((model, kind))
    try:
        yield
    finally:
        model._jit_compile = before
        _splitting.remove((model, kind))


def _compiled(original: Callable, model: Any, data: Any) -> Any:
    return tf.function(original, autograph=False, jit_compile=True)(model, data)


def _step(original: Callable, model: Any, data: Any) -> Any:
    optimizer, variables, keywords = model.optimizer, [], {}

    def forward_and_backward(data):
        with _held_back(optimizer) as calls:
            logs = original(model, data)
        gradients = []
        for pairs, more in calls:  # one call; none without trainable weights
            gradients += [gradient for gradient, _ in pairs]
            variables.extend(variable for _, variable in pairs)
            keywords.update(more)
        return logs, gradients

    compiled = tf.function(forward_and_backward, autograph=False, jit_compile=True)
    logs, gradients = compiled(data)
    if gradients:
        optimizer.apply_gradients(zip(gradients, variables), **keywords)
    return logs


@contextlib.contextmanager
def _held_back(optimizer: Any) -> Iterator[list[tuple[list[Any], dict[str, Any]]]]:
    """In this context `optimizer.apply_gradients` changes nothing.

    Yields: the list of its calls, as (the pairs of gradient and variable, the other arguments).
    """
    calls: list[tuple[list[Any], dict[str, Any]]] = []

    def apply_gradients(grads_and_vars, **keywords):
        calls.append((list(grads_and_vars), keywords))

    users_own = vars(optimizer).get("apply_gradients")
    # Past the attributes that Keras tracks.
    object.__setattr__(optimizer, "apply_gradients", apply_gradients)
    try:
        yield calls
    finally:
        if users_own is None:
            object.__delattr__(optimizer, "apply_gradients")
        else:
            object.__setattr__(optimizer, "apply_gradients", users_own)
