"""The classes of wrapped optimizers: subclasses of Keras' own that aggregate gradients.

The method that takes (gradient, variable) pairs is overridden and returns the aggregated gradients.
Its name differs between the generations of Keras.  Other methods are overridden to build variables
before the first step is traced, and to save and load the compression state.  How variables are
updated stays Keras' own.  A MultiOptimizer aggregates nothing itself: its inner optimizers are
wrapped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.trackable.autotrackable import AutoTrackable

from grace_tf.aggregation.aggregator import Aggregator
from grace_tf.aggregation.already_aggregated import aggregated
from grace_tf.aggregation.micro_batches import observed
from grace_tf.keras import repairs
from grace_tf.keras.files.saved_state import InFiles, SavedState
from grace_tf.keras.flavours import Flavour, derived, flavour_of, is_a
from grace_tf.keras.momentum import refuse_second_momentum, tell_far_settings
from grace_tf.keras.optimizer_info import building, builds_early, info_of
from grace_tf.keras.optimizers import (
    after_aggregates,
    bases_in,
    deals_out,
    ignore_in_configs,
    innermost,
    iterations_of,
    micro_batches_of,
    of_one_strategy,
    parts,
    unchanged_errors,
)
from grace_tf.line.inputs import plain
from grace_tf.line.settings import Settings, from_config

KEY = "grace"  # the key of the settings in the config of a wrapped optimizer


class Wrapped:
    """Base class of every wrapped optimizer: stores the settings in the config; can be copied."""

    _plain_class: type
    _grace: Aggregator | None = None
    _grace_settings: Settings | None = None

    def __init_subclass__(cls, **keywords):
        super().__init_subclass__(**keywords)
        plain = getattr(cls, "_plain_class", Wrapped)
        # A class that a user derives from a wrapped one has no plain class: its methods are in it.
        if "_plain_class" not in vars(cls) and not issubclass(plain, Wrapped):
            cls._plain_class = cls

    def _settings(self) -> Settings:
        """The settings that `wrap` was given."""
        if self._grace_settings is None:
            raise _bare(type(self))
        return self._grace_settings

    def get_config(self):
        wanted = self._settings().config()
        config = super().get_config()
        # A string, since Keras 2 replaces tracked dictionaries by objects of its own.
        return {**config, KEY: json.dumps(wanted)}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        if KEY not in config:
            raise _bare(cls)
        wanted = cls._read(config.pop(KEY))
        optimizer = super().from_config(config, custom_objects=custom_objects)
        attach(optimizer, wanted)
        return optimizer

    @classmethod
    def _read(cls, text: Any) -> Settings:
        """The settings that `get_config` has written as this text."""
        try:
            wanted = json.loads(text)
        except (TypeError, ValueError):
            wanted = None
        if not isinstance(wanted, dict):
            raise ValueError(
                f"The config of this {cls.__name__} is damaged: its {KEY!r} is {str(text)[:60]!r} "
                "and not the text that get_config() has written; take the config from "
                "get_config(), or restore another file."
            )
        return from_config(wanted)

    def __reduce__(self):
        # Keras 2 optimizers cannot be pickled, and those of Keras 3 only if it knows their class.
        config = super().get_config()
        return _rebuilt, (plain_classes(self), config, self._settings(), states(self))


class _Reducing(InFiles, Wrapped):
    """A wrapped optimizer that aggregates gradients itself: it has an aggregator."""

    @unchanged_errors()
    def _aggregated(self, grads_and_vars, keras_way):
        grads_and_vars = list(grads_and_vars)
        aggregator = self._aggregator()
        variables = [v for _, v in grads_and_vars]
        if any(aggregated(v) for g, v in grads_and_vars if g is not None):
            raise ValueError(
                "Both an Aggregator and a wrapped optimizer compress these gradients; use one."
            )

        def own_way(grads):
            present = [v for g, v in grads_and_vars if g is not None]
            return [g for g, _ in keras_way(list(zip(grads, present)))]

        tell_far_settings(self, aggregator)
        grads = [g for g, _ in grads_and_vars]
        totals = aggregator.aggregate(grads, variables, own_way, lambda: info_of(self))
        return list(zip(totals, variables))

    def _aggregator(self) -> Aggregator:
        if self._grace is None:
            raise _bare(type(self))
        return self._grace

    def _after(self, strategy, grads_and_vars):
        return after_aggregates(strategy, () if self._settings().dense else grads_and_vars)


def _bare(cls: type) -> ValueError:
    return ValueError(f"A bare {cls.__name__} compresses nothing; make it with grace_tf.wrap().")


class _Keras3(_Reducing):
    def build(self, variables):
        with building(variables), of_one_strategy(self):
            super().build(variables)
        self._aggregator().join(variables)  # here the variables still have their paths

    def _backend_apply_gradients(self, grads, trainable_variables):
        count = observed(self._aggregator().settings)
        if count > 1:
            self._observe(grads, trainable_variables, count)
        original = super()._backend_apply_gradients
        repairs.decide_across_replicas(self, original, grads, trainable_variables)

    @unchanged_errors()
    def _observe(self, grads, variables, count):
        """Shows the memories one of the `count` micro-batches whose gradients Keras accumulates."""
        now = micro_batches_of(self, self._settings().hierarchical)
        if now != count:
            raise ValueError(
                f"The gradient_accumulation_steps or the clipping of this {type(self).__name__} "
                f"have changed since it was wrapped, so that its memory would see {now} "
                f"micro-batches before each step and not {count}: grace_tf.unwrap() it, and wrap "
                "it again."
            )
        # The first Keras 3 counts in `iterations`, the others in both.
        counter = getattr(self, "_iterations", None)
        counter = self.iterations if counter is None else counter
        first = tf.equal(plain(counter) % count, 0)
        self._aggregator().observe(grads, variables, first)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        return self._aggregated(grads_and_vars, super()._all_reduce_sum_gradients)

    def _distributed_tf_update_step(self, distribution, grads_and_vars, learning_rate):
        with self._after(distribution, grads_and_vars):
            super()._distributed_tf_update_step(distribution, grads_and_vars, learning_rate)


class _Keras2(_Reducing):
    _late = False  # whether gradients were aggregated before the optimizer was built

    def build(self, var_list):
        self._aggregator().join(var_list)
        built = getattr(self, "_built", False)
        # If gradients were aggregated first, the workers compare the new variables in a second
        # trace, which TensorFlow makes if Keras makes the variables in its own way.  Nadam changes
        # what it computes with the number of traces, so it needs as many as without grace_tf.
        early = not (built or self._late or is_a(self, "optimizers.Nadam"))
        with building(var_list) if early else contextlib.nullcontext():
            super().build(var_list)

    def apply_gradients(self, grads_and_vars, *arguments, **keywords):
        pairs = list(grads_and_vars)
        variables = [v for _, v in pairs]
        # In Keras the second argument is a name.  In a user's class it may be something else.
        name = keywords.get("name", *arguments[:1])
        name = name if isinstance(name, str) else self.name
        # Keras 2 builds an optimizer after it has aggregated.  But workers compare its variables
        # when they aggregate for the first time.
        if pairs and not getattr(self, "_built", False) and builds_early(variables):
            with _next_name_scope(name or "optimizer"), tf.init_scope():
                self.build(variables)
        return super().apply_gradients(pairs, *arguments, **keywords)

    def aggregate_gradients(self, grads_and_vars):
        self._late = not getattr(self, "_built", False)
        return self._aggregated(grads_and_vars, super().aggregate_gradients)

    def _distributed_apply_gradients_fn(self, distribution, grads_and_vars, **keywords):
        with self._after(distribution, grads_and_vars):
            return super()._distributed_apply_gradients_fn(distribution, grads_and_vars, **keywords)


def _next_name_scope(name: str) -> Any:
    """The name scope that Keras will open next under this name; Keras still gets the same one."""
    if tf.inside_function():
        name = tf.compat.v1.get_default_graph().unique_name(name, mark_as_used=False) + "/"
    return tf.name_scope(name)


def compressing(keras: Flavour) -> type:
    """The base of an optimizer that compresses by itself, beside this Keras' Optimizer."""
    return _Keras3 if keras.is_3 else _Keras2


class _Legacy(_Reducing):
    def _aggregate_gradients(self, grads_and_vars):
        return self._aggregated(grads_and_vars, super()._aggregate_gradients)


class _Multi(Wrapped):
    """A wrapped MultiOptimizer: each of its inner optimizers aggregates its own gradients."""

    def _wrap_parts(self):
        """Wraps inner optimizers not wrapped yet: some are made when the variables are known."""
        wanted = self._settings()
        for k, part in enumerate(parts(self)):
            if not isinstance(part, Wrapped):
                # Another seed for each: every optimizer numbers its variables from 0.
                attach(part, dataclasses.replace(wanted, seed=(wanted.seed + k) % 2**32))


class _Keras3Multi(_Multi):
    def build(self, var_list):
        super().build(var_list)
        self._wrap_parts()


class _AddonsMulti(_Multi):
    def apply_gradients(self, grads_and_vars, **keywords):
        # Keras stores the pairs in the optimizer, where replicas would overwrite each other's.
        self._wrap_parts()
        pairs = list(grads_and_vars)
        for spec in self.optimizer_specs:
            mine = [(g, v) for g, v in pairs if v.name in spec["weights"]]
            spec["optimizer"].apply_gradients(mine, **keywords)
        return self.iterations.assign_add(1, read_value=tf.executing_eagerly())

    def _aggregate_gradients(self, grads_and_vars):
        """Aggregates; a LossScaleOptimizer calls it before it applies gradients."""
        self._wrap_parts()
        out = list(grads_and_vars)
        waiting = set(range(len(out)))
        for spec in self.optimizer_specs:
            mine = sorted(i for i in waiting if out[i][1].name in spec["weights"])
            waiting.difference_update(mine)
            inner = innermost(spec["optimizer"])
            reduce = getattr(inner, "_aggregate_gradients", None) or inner.aggregate_gradients
            for i, total in zip(mine, reduce([out[i] for i in mine])):
                out[i] = total
        return out


def is_bare(optimizer: Any) -> bool:
    """Whether it is of a wrapped class, but was constructed, and not given to `wrap`."""
    return isinstance(optimizer, Wrapped) and optimizer._grace_settings is None


_classes: dict[type, type] = {}


def attach(optimizer: Any, wanted: Settings) -> None:
    """Turns an optimizer into a wrapped one, with an aggregator of these settings.

    Raises ValueError where both the optimizer and a memory have a momentum, and where a memory was
    told of micro-batches that the optimizer does not have.
    """
    refuse_second_momentum(optimizer, wanted)
    count = micro_batches_of(optimizer, wanted.hierarchical)
    observing = wanted.of_micro_batches(count)
    if not isinstance(optimizer, Wrapped):
        optimizer.__class__ = wrapped_class(type(optimizer))
    keras = flavour_of(optimizer)
    repairs.fit_on_several_workers(keras)  # here, since loaded optimizers do not go through wrap
    optimizer._grace_settings = wanted
    if isinstance(optimizer, _Multi):
        optimizer._wrap_parts()
        return
    aggregator = Aggregator(observing)
    aggregator.follow(functools.partial(iterations_of, weakref.ref(optimizer)))
    optimizer._grace = aggregator  # all but legacy optimizers track it automatically
    optimizer._grace_state = derived(SavedState, keras, "losses.Loss")(aggregator)
    if isinstance(optimizer, _Legacy):
        optimizer._track_trackable(aggregator, "_grace", overwrite=True)
    if getattr(optimizer, "built", False):
        aggregator.join(getattr(optimizer, "_trainable_variables", ()))


def detach(optimizer: Any) -> None:
    """Gives a wrapped optimizer and its inner optimizers their plain classes back.

    Raises ValueError for an optimizer that compresses by itself: it has no plain class.
    """
    if issubclass(type(optimizer)._plain_class, Wrapped):
        raise ValueError(
            f"{type(optimizer).__name__} compresses by itself and was not wrapped, so it cannot be "
            "unwrapped: use another optimizer in its place."
        )
    for part in filter(lambda part: isinstance(part, Wrapped), parts(optimizer)):
        detach(part)
    if isinstance(optimizer, _Legacy):
        AutoTrackable._delete_tracking(optimizer, "_grace")
    del optimizer._grace_settings
    if not isinstance(optimizer, _Multi):
        del optimizer._grace, optimizer._grace_state
    optimizer.__class__ = type(optimizer)._plain_class


@contextlib.contextmanager
def wearing_plain_class(optimizer: Any) -> Iterator[None]:
    """Inside, a wrapped optimizer has its plain class, by which Keras knows it."""
    wrapped = type(optimizer)
    optimizer.__class__ = wrapped._plain_class
    try:
        yield
    finally:
        optimizer.__class__ = wrapped


def reducing(optimizer: Any) -> list[Any]:
    """The wrapped optimizers that aggregate: the optimizer, or a MultiOptimizer's inner ones."""
    given = innermost(optimizer)
    return [each for each in (given, *parts(given)) if isinstance(each, _Reducing)]


def states(optimizer: Any) -> list[dict[str, np.ndarray]]:
    """The compression states of `reducing(optimizer)`."""
    return [each._aggregator().state.arrays() for each in reducing(optimizer)]


def plain_classes(optimizer: Any) -> list[type]:
    """The plain classes of a wrapped optimizer and its inner ones; empty for a plain optimizer."""
    given = innermost(optimizer)
    return [each._plain_class for each in (given, *parts(given)) if isinstance(each, Wrapped)]


def wrapped_class(base: type) -> type:
    """The registered subclass of an optimizer class: "Grace" [+ "Legacy" or "Tfa"] + its name."""
    if issubclass(base, Wrapped):  # it compresses by itself
        return base
    if base not in _classes:
        keras = flavour_of(base)
        mixin, prefix = compressing(keras), ""
        if not keras.is_3 and issubclass(base, keras.module.optimizers.legacy.Optimizer):
            tfa = base.__module__.startswith("tensorflow_addons")
            mixin, prefix = _Legacy, "Tfa" if tfa else "Legacy"
        if deals_out(base):
            mixin = _Keras3Multi if keras.is_3 else _AddonsMulti
        name = f"Grace{prefix}{base.__name__}"
        attributes = {"__module__": __name__, "__doc__": base.__doc__, "_plain_class": base}
        cls = type(name, (mixin, base), attributes)
        # A user's class called Adam must not be confused with Keras' Adam in files.
        same = [other for other in _classes.values() if flavour_of(other) == keras]
        taken = any(other.__name__ == name for other in same)
        registered = f"{base.__module__}.{name}" if taken else name
        register = keras.module.utils.register_keras_serializable
        _classes[base] = register("grace_tf", registered)(cls)
        ignore_in_configs(base, KEY, Wrapped)
    return _classes[base]


def made_with(classes: Sequence[type], how: Callable, arguments: Sequence[Any]) -> Any:
    """Registers the wrapped classes of these plain ones, then returns `how(*arguments)`."""
    for base in classes:
        wrapped_class(base)
    return how(*arguments)


def _rebuilt(
    classes: Sequence[type], config: dict[str, Any], wanted: Settings, saved: Sequence[dict]
) -> Any:
    """A copy of a wrapped optimizer; `classes`: its plain class, then those of its inner ones."""
    if issubclass(classes[0], Wrapped):  # a user's, which reads its settings from the config
        config = {**config, KEY: json.dumps(wanted.config())}
    optimizer = made_with(classes, classes[0].from_config, [config])
    attach(optimizer, wanted)
    for each, arrays in zip(reducing(optimizer), saved):
        each._aggregator().state.restore(arrays)
    return optimizer


def register_built_in(keras: Flavour) -> None:
    """Registers the wrapped classes of a Keras' optimizers, so that load_model finds them."""
    bases, optimizers = bases_in(keras), keras.module.optimizers
    namespaces = [optimizers] if keras.is_3 else [optimizers, optimizers.legacy]
    found = [getattr(namespace, name) for namespace in namespaces for name in dir(namespace)]
    for cls in filter(lambda each: isinstance(each, type) and issubclass(each, bases), found):
        if cls not in bases and "LossScale" not in cls.__name__:
            wrapped_class(cls)
