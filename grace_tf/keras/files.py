"""Puts the compression state of a wrapped optimizer into Keras' files, and reads it from them.

Keras calls this module while it saves or loads a model or its weights; the arrays of `State` go
into the file or come from it.  They have a group of their own below the optimizer's, where a plain
optimizer never looks: plain and wrapped optimizers load each other's files.
"""

from __future__ import annotations

import os

import keras
import numpy as np

from grace_tf.aggregation.aggregator import Aggregator
from grace_tf.aggregation.state.file_format import as_key, from_keys

_FILE = "grace.npz"  # among a model's assets, where earlier versions kept the state


class SavedState(keras.losses.Loss):
    """The compression state as a child of its optimizer, in whatever file holds weights.

    Keras looks for such children among layers, metrics, optimizers and losses only; a loss is the
    one of them that brings nothing along.
    """

    def __init__(self, aggregator: Aggregator) -> None:
        super().__init__(name="compression_state")
        self._aggregator = aggregator
        self.steps = 0  # of the optimizer, as this file has them
        self.from_assets = False  # whether the same file held the state elsewhere

    def save_own_variables(self, store):
        for stem, rows in self._aggregator.state.arrays().items():
            store[as_key(stem)] = rows

    def load_own_variables(self, store):
        arrays = {key: np.asarray(store[key]) for key in store.keys()}
        if arrays:
            self._aggregator.state.restore(from_keys(arrays))
        elif not self.from_assets:
            self._aggregator.state.lose("The loaded file", self.steps)
        self.from_assets = False


class InFiles:
    """What a wrapped optimizer does while Keras saves and loads it."""

    _grace_state: SavedState

    def load_own_variables(self, store):
        super().load_own_variables(store)
        self._grace_state.steps = int(self.iterations.numpy())

    def load_assets(self, path):
        file = os.path.join(path, _FILE) if path else ""
        if os.path.exists(file):
            with np.load(file) as arrays:
                self._grace_state._aggregator.state.restore(dict(arrays))
            self._grace_state.from_assets = True

    def set_weights(self, weights):
        super().set_weights(weights)  # also what a whole model's .h5 file comes through
        steps = int(self.iterations.numpy())
        self._grace_state._aggregator.state.lose("What was given to set_weights", steps)
