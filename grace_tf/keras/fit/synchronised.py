"""BatchNormalization with `synchronized=True` is refused where Keras would not synchronise it.

Keras sums a batch's statistics over the replicas of a strategy.  Plain processes have no strategy,
so each would normalise by its own rows, without any error.
"""

from __future__ import annotations

from typing import Any

import keras

from grace_tf.keras.repairs import KERAS_3
from grace_tf.keras.replacing import in_place_of
from grace_tf.transports.world.current_workers import several

_MOMENTS = "_moments" if KERAS_3 else "_sync_calculate_mean_and_var"
# SyncBatchNormalization of Keras 2 is a subclass of it too.
_LAYER = next(
    (base for base in keras.layers.BatchNormalization.__mro__ if _MOMENTS in vars(base)),
    keras.layers.BatchNormalization,
)


def refuse_unsynchronised(model: Any) -> None:
    """Raises RuntimeError before the first step of a model between plain processes."""
    for layer in model._flatten_layers():
        if isinstance(layer, _LAYER) and layer.trainable:
            _refuse(layer)


def _refuse(layer: Any) -> None:
    if layer.synchronized and several() is not None:
        raise RuntimeError(
            f"The {type(layer).__name__} {layer.name!r} is to be synchronised, but Keras does that "
            "only under a tf.distribute strategy and not between plain processes: make it with "
            "synchronized=False, where fit averages the moving statistics after each epoch, or "
            "train under MultiWorkerMirroredStrategy."
        )


def install() -> None:
    """Refuses it in custom loops as well, and in models that are built by their first step."""
    if not hasattr(_LAYER, _MOMENTS):  # another Keras: `fit` refuses it all the same
        return

    @in_place_of(_LAYER, _MOMENTS)
    def moments(original, self, *args, **kwargs):
        _refuse(self)
        return original(self, *args, **kwargs)
