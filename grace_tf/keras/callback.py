"""`Callback`: names the worker whose first values count."""

from __future__ import annotations

from typing import Any

import keras


class Callback(keras.callbacks.Callback):
    """Makes the model start with worker `root`'s values instead of worker 0's.

    `fit` needs it for nothing else: it takes means of logs, and of BatchNormalization's statistics,
    by itself, and in the first step all workers take one worker's values.

    Args:
      root: the rank of the worker whose values count, the same on every worker.
    """

    def __init__(self, root: int = 0):
        super().__init__()
        self._root = root

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        model._grace_root = self._root
