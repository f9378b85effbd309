"""The classes of wrapped optimizers: Keras' own, but for the way gradients cross workers.

One method is overridden: in come (gradient, variable) pairs, out go the aggregated ones.  Every
Keras generation calls that method something else; the rest of an optimizer stays Keras' own.
"""

from __future__ import annotations

import json
from typing import Any

import keras
from tensorflow.python.trackable.autotrackable import AutoTrackable

from grace_tf.aggregator import Aggregator, aggregated
from grace_tf.keras import repairs
from grace_tf.keras.files import InFiles, SavedState
from grace_tf.keras.first_step import building, owner_of
from grace_tf.keras.repairs import KERAS_3
from grace_tf.settings import settings

_PACKAGE = "grace_tf"


class Wrapped(InFiles):
    """What every wrapped optimizer has: an aggregator, and its settings in the config."""

    _grace: Aggregator | None = None

    def _aggregated(self, grads_and_vars, host):
        grads_and_vars = list(grads_and_vars)
        aggregator = self._aggregator()
        variables = [v for _, v in grads_and_vars]
        if any(aggregated(v) for g, v in grads_and_vars if g is not None):
            raise ValueError(
                "Both an Aggregator and a wrapped optimizer compress these gradients; use one."
            )

        def by_host(grads):
            present = [v for g, v in grads_and_vars if g is not None]
            return [g for g, _ in host(list(zip(grads, present)))]

        grads = [g for g, _ in grads_and_vars]
        totals = aggregator.aggregate(grads, variables, by_host, lambda: owner_of(self))
        return list(zip(totals, variables))

    def _aggregator(self) -> Aggregator:
        if self._grace is None:
            raise _bare(type(self))
        return self._grace

    def get_config(self):
        wanted = self._aggregator().settings.config()
        config = super().get_config()
        # Text, since Keras 2 turns dictionaries that it tracks into objects of its own.
        return {**config, "grace": json.dumps(wanted)}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        if "grace" not in config:
            raise _bare(cls)
        wanted = json.loads(config.pop("grace"))
        optimizer = super().from_config(config, custom_objects=custom_objects)
        attach(optimizer, Aggregator(settings(**wanted)))
        return optimizer


def _bare(cls: type) -> ValueError:
    return ValueError(f"A bare {cls.__name__} compresses nothing; make it with grace_tf.wrap().")


class _Keras3(Wrapped):
    def build(self, variables):
        with building(variables):
            super().build(variables)
        self._aggregator().join(variables)  # here the variables still have their paths

    def _backend_apply_gradients(self, grads, trainable_variables):
        own = super()._backend_apply_gradients
        repairs.decide_across_replicas(self, own, grads, trainable_variables)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        return self._aggregated(grads_and_vars, super()._all_reduce_sum_gradients)


class _Keras2(Wrapped):
    def build(self, var_list):
        self._aggregator().join(var_list)
        super().build(var_list)

    def aggregate_gradients(self, grads_and_vars):
        return self._aggregated(grads_and_vars, super().aggregate_gradients)


class _Legacy(Wrapped):
    def _aggregate_gradients(self, grads_and_vars):
        return self._aggregated(grads_and_vars, super()._aggregate_gradients)


_classes: dict[type, type] = {}


def attach(optimizer: Any, aggregator: Aggregator) -> None:
    """Gives an optimizer of a wrapped class its aggregator; a built one's variables join it."""
    optimizer._grace = aggregator  # automatically tracked by all but legacy optimizers
    optimizer._grace_state = SavedState(aggregator)
    if isinstance(optimizer, _Legacy):
        optimizer._track_trackable(aggregator, "_grace", overwrite=True)
    if getattr(optimizer, "built", False):
        aggregator.join(getattr(optimizer, "_trainable_variables", ()))
    repairs.fit_on_several_workers()  # a loaded optimizer never went through wrap


def detach(optimizer: Any) -> None:
    """Gives an optimizer of a wrapped class its own class back."""
    if isinstance(optimizer, _Legacy):
        AutoTrackable._delete_tracking(optimizer, "_grace")
    del optimizer._grace, optimizer._grace_state
    optimizer.__class__ = next(base for base, cls in _classes.items() if cls is type(optimizer))


def bases() -> tuple[type, ...]:
    """The classes that all optimizers of this Keras derive from."""
    if KERAS_3:
        return (keras.optimizers.Optimizer,)
    return (keras.optimizers.Optimizer, keras.optimizers.legacy.Optimizer)


def wrapped_class(base: type) -> type:
    """The registered subclass of an optimizer class: Grace, Legacy or Tfa if it is, its name."""
    if base not in _classes:
        mixin, prefix = _Keras3 if KERAS_3 else _Keras2, ""
        if not KERAS_3 and issubclass(base, keras.optimizers.legacy.Optimizer):
            tfa = base.__module__.startswith("tensorflow_addons")
            mixin, prefix = _Legacy, "Tfa" if tfa else "Legacy"
        name = f"Grace{prefix}{base.__name__}"
        cls = type(name, (mixin, base), {"__module__": __name__, "__doc__": base.__doc__})
        # A class of the user's own that is called Adam must not take the place of Keras' in files.
        taken = any(other.__name__ == name for other in _classes.values())
        registered = f"{base.__module__}.{name}" if taken else name
        _classes[base] = keras.utils.register_keras_serializable(_PACKAGE, registered)(cls)
    return _classes[base]


def _register_built_in() -> None:
    """So that load_model finds the classes of wrapped optimizers in a fresh process."""
    namespaces = [keras.optimizers] if KERAS_3 else [keras.optimizers, keras.optimizers.legacy]
    found = [getattr(namespace, name) for namespace in namespaces for name in dir(namespace)]
    for cls in found:
        if isinstance(cls, type) and issubclass(cls, bases()) and cls not in bases():
            if "LossScale" not in cls.__name__:
                wrapped_class(cls)


_register_built_in()
