"""`wrap` for Keras optimizers, the callback, and the changes that grace_tf makes to Keras.

It imports no Keras.  When `keras` or `tf_keras` is imported, before or after it, this package puts
guards on that Keras' optimizers, wraps its `fit` and its pickling, makes its BatchNormalization
refuse what it cannot synchronise, and applies the repairs that are needed everywhere.
"""

from grace_tf.keras import (
    classes,
    flavours,
    guards,
    legacy_conversion,
    loss_scaling,
    one_bit_adam,
    repairs,
    training,
)
from grace_tf.keras.callback import Callback
from grace_tf.keras.files import backups, paths_by_worker, pickling, saving_once
from grace_tf.keras.files.paths_by_worker import own_path
from grace_tf.keras.fit import rate_setters, split_steps, stopping, synchronised
from grace_tf.keras.flavours import Flavour
from grace_tf.keras.monitor import Monitor
from grace_tf.keras.one_bit_adam import OneBitAdam
from grace_tf.keras.wrapping import aggregator_of, unwrap, wrap
from grace_tf.transports import scope_variables
from grace_tf.transports.lifeline import lifeline

__all__ = ["Callback", "Monitor", "OneBitAdam", "aggregator_of", "own_path", "unwrap", "wrap"]


def _install(keras: Flavour) -> None:
    # split_steps before training, which counts the steps of the function that Keras makes.
    for changed in (guards, split_steps, training, stopping, synchronised, legacy_conversion):
        changed.install(keras)
    for changed in (paths_by_worker, saving_once, backups, pickling):
        changed.install(keras)
    repairs.agree_on_finite(keras, guards.agree)
    loss_scaling.install(keras)
    repairs.no_xla_between_processes(keras, split_steps.fails_as_a_whole)
    classes.register_built_in(keras)
    one_bit_adam.register(keras)


lifeline.begin_in_scopes()
scope_variables.install()
rate_setters.install()
flavours.when_imported(_install)
