"""BatchNormalization with `synchronized=True` is refused where Keras would not synchronise it.

Keras sums a batch's statistics over the replicas of a strategy.  Plain processes have no strategy,
so each would normalise by its own rows, without any error.
"""

from __future__ import annotations

from typing import Any

from grace_tf.keras.flavours import Flavour, flavour_of
from grace_tf.keras.replacing import in_place_of
from grace_tf.transports.world.current_workers import several


def _moments(keras: Flavour) -> str:
    """The name of the method that sums statistics over replicas."""
    return "_moments" if keras.is_3 else "_sync_calculate_mean_and_var"


def _layer(keras: Flavour) -> type:
    """The class that has this method; SyncBatchNormalization of Keras 2 is a subclass of it too."""
    given, name = keras.module.layers.BatchNormalization, _moments(keras)
    return next((base for base in given.__mro__ if name in vars(base)), given)


def refuse_unsynchronised(model: Any) -> None:
    """Raises RuntimeError before the first step of a model between plain processes."""
    normalises = _layer(flavour_of(model))
    for layer in model._flatten_layers():
        if isinstance(layer, normalises) and layer.trainable:
            _refuse(layer)


def _refuse(layer: Any) -> None:
    if layer.synchronized and several() is not None:
        raise RuntimeError(
            f"The {type(layer).__name__} {layer.name!r} is to be synchronised, but Keras does that "
            "only under a tf.distribute strategy and not between plain processes: make it with "
            "synchronized=False, where fit averages the moving statistics after each epoch, or "
            "train under MultiWorkerMirroredStrategy."
        )


def install(keras: Flavour) -> None:
    """Refuses it in custom loops as well, and in models that are built by their first step."""
    layer, name = _layer(keras), _moments(keras)
    if not hasattr(layer, name):  # another version: `fit` refuses it all the same
        return

    @in_place_of(layer, name)
    def moments(original, self, *args, **kwargs):
        _refuse(self)
        return original(self, *args, **kwargs)
