"""`Callback`: names the worker whose first values count."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from grace_tf.keras import flavours
from grace_tf.keras.files.paths_by_worker import place


class OfOneKeras:
    """Base class of the public callbacks.  Each object is also a callback of one Keras.

    The keyword `keras` gives that Keras.  Without it, it is the Keras that `tf.keras` means.
    """

    def __new__(cls, *args: Any, keras: ModuleType | None = None, **keywords: Any) -> OfOneKeras:
        if flavours.flavour_of(cls) is None:
            cls = flavours.derived(cls, flavours.chosen(keras), "callbacks.Callback")
        return super().__new__(cls)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        _, _, *state = super().__reduce_ex__(max(protocol, 2))
        package = flavours.flavour_of(self).package
        return (_blank, (flavours.underived(type(self)), package), *state)

    def set_model(self, model: Any) -> None:
        own, wanted = flavours.flavour_of(self), flavours.flavour_of(model)
        if wanted not in (own, None):
            raise TypeError(
                f"This {type(self).__name__} is of {own.package} and the model of "
                f"{wanted.package}: make it with keras={wanted.package}."
            )
        super().set_model(model)


def _blank(cls: type, package: str) -> OfOneKeras:
    """Makes a callback without attributes.  Unpickling and copying then set its attributes."""
    return cls.__new__(cls, keras=importlib.import_module(package))


class Callback(OfOneKeras):
    """Makes the model start with worker `root`'s values instead of worker 0's.

    `fit` needs it for nothing else: it takes means of logs, and of BatchNormalization's statistics,
    by itself, and in the first step all workers take one worker's values.

    Args:
      root: the rank of the worker whose values count, the same on every worker.
      keras: the module `keras` or `tf_keras`, of whose callbacks it is to be one; by default the
        Keras that `tf.keras` means.
    Raises: in `fit`, TypeError for a model of the other Keras, and ValueError where no worker has
      this rank.
    """

    def __init__(self, root: int = 0, keras: ModuleType | None = None):
        super().__init__()
        self._root = root

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        _, size = place(model)
        if size > 1 and not 0 <= self._root < size:
            raise ValueError(
                f"Callback(root={self._root}) names none of the {size} workers: they are numbered "
                f"from 0 to {size - 1}."
            )
        model._grace_root = self._root

    def on_train_end(self, logs: Any = None) -> None:
        self.model._grace_root = 0
