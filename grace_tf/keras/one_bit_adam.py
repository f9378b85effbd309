"""`OneBitAdam`: Adam whose momentum travels as signs once its variance has settled.

It is an optimizer over the line, not a compressor: what a worker sends is its next momentum, and
the aggregate is the momentum of the step.  The line sees a schedule of two stages, gradients as
they are and momenta as signs, whose clock is this optimizer's choice of the stage.
"""

from __future__ import annotations

import functools
import importlib
import json
import weakref
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from grace_tf.core.hyperparameters import check_integer, check_number
from grace_tf.core.registry import KEYWORDS
from grace_tf.keras import flavours
from grace_tf.keras.classes import KEY, Wrapped, attach, compressing, reducing, states
from grace_tf.keras.flavours import Flavour
from grace_tf.keras.optimizer_info import building
from grace_tf.keras.optimizers import iterations_of, unchanged_errors
from grace_tf.line.inputs import local, plain
from grace_tf.line.settings import Settings, settings

_SIGNS = "efsignsgd:block=4096"
_METHOD = {"compressor": f"none@0;{_SIGNS}@1", "memory": "residual"}
_SETTLED = 0.96  # of the variance's norm, against that of 1 / (1 - beta_2) steps ago
_DOUBLINGS = 40  # of intervals; more steps than a training has


class OneBitAdam(Wrapped):
    """Adam with momenta of one bit an element, after a warm-up with whole gradients.

        model.compile(optimizer=grace_tf.keras.OneBitAdam(1e-3, freeze_step=500), ...)

    In the warm-up it is Adam on the mean of the gradients.  Then the variance v stays as it is, and
    with m the momentum that all workers share, g a worker's gradient and e its residual

        x = β₁·m + (1 − β₁)·g + e,   sent = c·sign(x),   e ← x − sent,   m ← the mean of sent
        p ← p − lr·(m / (√v + ε) + weight_decay·p)

    c is the mean of |x| over 4096 elements.  m and v are those of Adam with its corrections of the
    bias, in the warm-up and after it.  A variable of fewer than `min_elements` elements, or that
    `exclude` names, sends x whole.  An element whose momentum is exactly 0 as the warm-up ends has
    had no gradient: signs would move it, so its momentum stays 0 and it no longer changes.

    The warm-up ends after `freeze_step` steps.  Without one it ends where the variance has settled:
    every Δ = 1/(1 − β₂) steps, ‖v‖₁ ≥ .96·‖v‖₁ of Δ steps before.  The workers look at the mean of
    their ‖v‖₁, so all end it in the same step.  With `intervals` = κ there is no warm-up: the
    variance takes in a whole gradient in each of κ steps, then in every second step κ times, in
    every fourth κ times, and so on; all other steps send signs.

    Wire: float32 gradients in the warm-up, 4n bytes, all-reduced; then signs and scales, n/8 +
    n/1024 bytes, gathered.  So after the warm-up each of N workers sends about N/64 of what
    the all-reduce sends.  With `exchange="two_hop"` it sends about 1/32 for any N: each worker adds
    up one part of the momentum and sends it as signs again.  What that loses is in the residual of
    this worker.  The loss of the model is then higher (docs/methods.md), so two hops are a choice.

    Args:
      learning_rate, beta_1, beta_2, epsilon, weight_decay: as of keras.optimizers.Adam.
      freeze_step: the number of steps of the warm-up, at least 1.
      intervals: the number κ above, at least 1; the paper's is 16.
      keras: the module `keras` or `tf_keras`, of whose optimizers it is to be one; by default the
        Keras that `tf.keras` means.
      **keywords: min_elements, exclude, exchange and the like, as for `grace_tf.wrap`; all others
        go to Keras' optimizer, as clipnorm or name.
    Raises: ValueError or TypeError for values out of range, and for freeze_step beside intervals.
    Paper: Tang et al. 2021, 1-bit Adam, arXiv:2102.02888; `intervals`: Lu et al. 2022, 0/1 Adam,
    arXiv:2202.06009, without its local steps.
    Differs: c is the mean magnitude of a block, not ‖x‖₂/√n of the whole: it has the least error,
    and a residual stays bounded with it.  Biases are corrected.  The paper always takes two hops,
    and keeps what an owner loses apart from its residual.
    """

    def __new__(cls, *args: Any, keras: ModuleType | None = None, **keywords: Any) -> OneBitAdam:
        if flavours.flavour_of(cls) is None:
            cls = _of(cls, flavours.chosen(keras))
        return super().__new__(cls)

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        weight_decay: float | None = None,
        freeze_step: int | None = None,
        intervals: int | None = None,
        keras: ModuleType | None = None,  # __new__ has chosen the class by it
        **keywords: Any,
    ) -> None:
        _check(beta_1, beta_2, epsilon, freeze_step, intervals)
        own = {key: keywords.pop(key) for key in KEYWORDS if key in keywords}
        if "memory" in own or "granularity" in own:
            raise TypeError("OneBitAdam: the memory and the granularity are the method's own.")
        if self._is_3:
            keywords["learning_rate"] = learning_rate
        else:
            keywords = {"name": "OneBitAdam", "jit_compile": False, **keywords}
        super().__init__(weight_decay=weight_decay, **keywords)
        if not self._is_3:
            self._learning_rate = self._build_learning_rate(learning_rate)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.freeze_step, self.intervals = freeze_step, intervals
        self._attach(settings(**_METHOD, **own))

    __new__.__wrapped__ = __init__  # whose arguments `help` shows

    def _attach(self, wanted: Settings) -> None:
        attach(self, wanted)
        self._grace.follow(functools.partial(_stage, weakref.ref(self)))

    def build(self, variables):
        if not hasattr(self, "_frozen_at"):
            with building(variables):
                self._build(variables)

    def _build(self, variables):
        super().build(variables)
        self._built = True  # Keras 2 asks for it; Keras 3 has set its own
        self._momentums, self._variances = [], []
        named = "name" if self._is_3 else "variable_name"
        for variable in variables:
            for slots, name in ((self._momentums, "momentum"), (self._variances, "variance")):
                slots.append(self.add_variable_from_reference(variable, **{named: name}))
        # The variance's norm when it was looked at last, and the steps of the warm-up, once known.
        self._norm = self.add_variable([1], dtype="float32", name="variance_norm")
        self._frozen_at = self.add_variable([1], dtype="int64", name="frozen_at")

    def get_config(self):
        config = super().get_config()
        names = ("beta_1", "beta_2", "epsilon", "freeze_step", "intervals")
        config.update({name: getattr(self, name) for name in names})
        if not self._is_3:
            config["learning_rate"] = self._serialize_hyperparameter(self._learning_rate)
        return config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        if flavours.flavour_of(cls) is None:
            return _of(cls, flavours.chosen()).from_config(config, custom_objects)
        config = {KEY: json.dumps(settings(**_METHOD).config()), **config}
        made = super().from_config(config, custom_objects=custom_objects)
        made._attach(made._settings())
        return made

    def __reduce__(self):
        return _rebuilt, (self.get_config(), states(self), flavours.flavour_of(self).package)

    @unchanged_errors()
    def _aggregated(self, grads_and_vars, keras_way):
        pairs = [(_dense(g), v) for g, v in grads_and_vars]
        with tf.init_scope():  # Keras 2 builds an optimizer after it has aggregated
            self.build([v for _, v in pairs])
        context = tf.distribute.get_replica_context()
        replicas = context.num_replicas_in_sync if context else 1
        whole = self._whole()
        # Under a strategy gradients are divided by the number of replicas and summed.
        kept = tf.where(whole, 0.0, self.beta_1 / replicas)
        taken = tf.where(whole, 1.0, 1 - self.beta_1)
        mixed = [(self._mixed(g, v, kept, taken), v) for g, v in pairs]
        if not self._watches:
            return super()._aggregated(mixed, keras_way)
        vote = self._seen_norm() / replicas, plain(self._norm)
        *totals, (norm, _) = super()._aggregated([*mixed, vote], keras_way)
        tf.__internal__.distribute.interim.maybe_merge_call(
            self._look, tf.distribute.get_strategy(), norm
        )
        return totals

    def _mixed(self, gradient, variable, kept, taken):
        """What a worker sends: its gradient, or its next momentum."""
        if gradient is None:
            return None
        momentum, _ = self._slots(variable)
        dtype = gradient.dtype
        return gradient * tf.cast(taken, dtype) + tf.cast(momentum, dtype) * tf.cast(kept, dtype)

    def update_step(self, gradient, variable, learning_rate=None):
        momentum, variance = self._slots(variable)
        rate = self.learning_rate if learning_rate is None else learning_rate
        whole, total = self._whole(), tf.cast(gradient, variable.dtype)
        now = tf.convert_to_tensor(variance)
        alive = self._alive(tf.convert_to_tensor(momentum), now)
        averaged = momentum * self.beta_1 + total * (1 - self.beta_1)
        averaged = tf.where(whole, averaged, tf.where(alive, total, tf.zeros_like(total)))
        refreshed = now * self.beta_2 + total * total * (1 - self.beta_2)
        # A variance of 0 marks an element that no longer changes.
        stays = now if self.intervals else tf.where(alive, now, tf.zeros_like(now))
        refreshed = tf.where(whole, refreshed, stays)
        momentum.assign(averaged)
        variance.assign(refreshed)
        corrected = tf.sqrt(1 - tf.pow(self.beta_2, tf.cast(self._updates(), tf.float32)))
        corrected /= 1 - tf.pow(self.beta_1, tf.cast(self._step() + 1, tf.float32))
        step = tf.cast(tf.cast(rate, tf.float32) * corrected, variable.dtype)
        variable.assign_sub(step * averaged / (tf.sqrt(refreshed) + self.epsilon))

    def _alive(self, momentum, variance):
        """Which elements signs may change."""
        alive = variance > 0
        if self.intervals:
            return alive & (momentum != 0)
        first = tf.equal(self._step(), self._warm_up())
        # Later a momentum may be 0 because what the workers have sent cancels.
        return alive & (~first | (momentum != 0))

    def _slots(self, variable):
        if self._is_3:
            index = self._get_variable_index(variable)
        else:
            index = self._index_dict[self._var_key(variable)]
        return plain(self._momentums[index]), plain(self._variances[index])

    @property
    def _is_3(self):
        return flavours.flavour_of(self).is_3

    @property
    def _watches(self):
        """Whether the variance says when the warm-up ends."""
        return self.freeze_step is None and self.intervals is None

    def _step(self):
        """The number of steps before this one, int64."""
        return tf.cast(iterations_of(weakref.ref(self)), tf.int64)

    def _warm_up(self):
        """The steps of the warm-up, int64; the largest number where they are not known."""
        if self.freeze_step is not None:
            return tf.constant(self.freeze_step, tf.int64)
        frozen_at = local(plain(self._frozen_at)).read_value()[0]
        return tf.where(frozen_at > 0, frozen_at, tf.int64.max)

    def _whole(self):
        """Whether this step sends gradients as they are; a bool, the same on all workers."""
        if self.intervals is None:
            return self._step() < self._warm_up()
        start, length, _ = self._interval()
        return tf.equal((self._step() - start) % length, 0)

    def _updates(self):
        """How many gradients are in the variance after this step, int64."""
        if self.intervals is None:
            return tf.minimum(self._step() + 1, self._warm_up())
        start, length, before = self._interval()
        return before + (self._step() - start) // length + 1

    def _interval(self):
        """(first step, length, earlier intervals) of the intervals that are as long as this one."""
        lengths = 2 ** np.arange(_DOUBLINGS)
        starts = tf.constant(self.intervals * (lengths - 1), tf.int64)
        i = tf.searchsorted(starts, self._step()[tf.newaxis], side="right")[0] - 1
        before = self.intervals * tf.cast(i, tf.int64)
        return starts[i], tf.constant(lengths, tf.int64)[i], before

    def _looks(self):
        """Whether the variance is looked at in this step, int64: every 1 / (1 - beta_2) steps."""
        every = max(1, round(1 / (1 - self.beta_2)))
        step = self._step()
        return tf.equal(step % every, 0) & (step > 0) & self._whole()

    def _seen_norm(self):
        """The sum of the variances, corrected, where they are looked at; else 0."""

        def norm():
            sums = [tf.reduce_sum(tf.cast(plain(v), tf.float32)) for v in self._variances]
            return tf.add_n(sums) / (1 - tf.pow(self.beta_2, tf.cast(self._step(), tf.float32)))

        return tf.cond(self._looks(), norm, lambda: 0.0)[tf.newaxis]

    def _look(self, distribution, norm):
        """Ends the warm-up where the norm, the workers' mean, is near that of the last look."""
        looks, following = self._looks(), self._step() + 1

        def end(frozen_at, before, norm):
            settled = looks & (before > 0) & (norm >= _SETTLED * before)
            frozen_at.assign(tf.where(settled, following, frozen_at))

        def store(before, norm):
            before.assign(tf.where(looks, norm, before))

        before, frozen_at = plain(self._norm), plain(self._frozen_at)
        distribution.extended.update(frozen_at, end, args=(before, norm), group=False)
        distribution.extended.update(before, store, args=(norm,), group=False)


OneBitAdam._plain_class = OneBitAdam  # it has no other: `unwrap` refuses it


def _of(cls: type, keras: Flavour) -> type:
    """This class, or a user's subclass of it, as an optimizer of a Keras."""
    made = flavours.derived(cls, keras, "optimizers.Optimizer", compressing(keras))
    package, registered, name = keras.module.utils.get_registered_name(cls).rpartition(">")
    if registered:  # by the user; files then have this name
        keras.module.utils.register_keras_serializable(package, name)(made)
    return made


def register(keras: Flavour) -> None:
    """Lets a Keras load files with this optimizer."""
    register_serializable = keras.module.utils.register_keras_serializable
    register_serializable("grace_tf", OneBitAdam.__name__)(_of(OneBitAdam, keras))


def _check(beta_1, beta_2, epsilon, freeze_step, intervals):
    for name, beta in (("beta_1", beta_1), ("beta_2", beta_2)):
        check_number("OneBitAdam", name, beta)
        if not 0 <= beta < 1:
            raise ValueError(f"OneBitAdam: {name} is at least 0 and less than 1, not {beta!r}.")
    check_number("OneBitAdam", "epsilon", epsilon)
    for name, steps in (("freeze_step", freeze_step), ("intervals", intervals)):
        if steps is not None:
            check_integer("OneBitAdam", name, steps, 1)
    if freeze_step is not None and intervals is not None:
        raise ValueError(
            "OneBitAdam: with intervals there is no warm-up: give freeze_step or intervals."
        )


def _dense(gradient):
    rows = isinstance(gradient, tf.IndexedSlices)  # its momentum has every row
    return tf.convert_to_tensor(gradient) if rows else gradient


def _stage(optimizer: weakref.ref) -> tf.Tensor:
    """The clock of the line's schedule: 0 where gradients travel whole, 1 where signs do."""
    return tf.cast(~optimizer()._whole(), tf.int64)


def _rebuilt(
    config: dict[str, Any], saved: Sequence[dict[str, np.ndarray]], package: str = "keras"
) -> OneBitAdam:
    keras = flavours.chosen(importlib.import_module(package))
    optimizer = _of(OneBitAdam, keras).from_config(config)
    for each, arrays in zip(reducing(optimizer), saved):
        each._aggregator().state.restore(arrays)
    return optimizer
