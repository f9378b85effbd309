"""`wrap` for Keras optimizers, the callback, and the changes that grace_tf makes to Keras.

The import puts guards on Keras' optimizers, wraps `fit` and pickling, makes BatchNormalization
refuse what it cannot synchronise, and applies the repairs that are needed everywhere.
"""

from grace_tf.keras import guards, repairs, training
from grace_tf.keras.callback import Callback
from grace_tf.keras.files import backups, paths_by_worker, pickling, saving_once
from grace_tf.keras.files.paths_by_worker import own_path
from grace_tf.keras.fit import rate_setters, stopping, synchronised
from grace_tf.keras.one_bit_adam import OneBitAdam
from grace_tf.keras.wrapping import aggregator_of, unwrap, wrap
from grace_tf.transports import scope_variables
from grace_tf.transports.lifeline import lifeline
from grace_tf.transports.world.current_workers import several

__all__ = ["Callback", "OneBitAdam", "aggregator_of", "own_path", "unwrap", "wrap"]

lifeline.begin_in_scopes()
scope_variables.install()
guards.install()
training.install()
stopping.install()
rate_setters.install()
synchronised.install()
paths_by_worker.install()
saving_once.install()
backups.install()
pickling.install()
repairs.agree_on_finite(guards.agree)
repairs.no_xla_between_processes(lambda: several() is not None)
