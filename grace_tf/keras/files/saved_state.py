"""Puts the compression state of a wrapped optimizer into Keras' files, and reads it from them.

Keras calls this module while it saves or loads a model or its weights; it writes the arrays of
`State` to the file, or reads them.  They have their own group below the optimizer's, which plain
optimizers ignore, so plain and wrapped optimizers load each other's files.
"""

from __future__ import annotations

import os

import numpy as np

from grace_tf.aggregation.aggregator import Aggregator
from grace_tf.aggregation.state.file_format import as_key, from_keys
from grace_tf.transports.world.current_workers import in_graph_of_tensorflow_1

_FILE = "grace.npz"  # among a model's assets, where earlier versions kept the state


class SavedState:
    """The compression state as a child of its optimizer, in whatever file holds weights.

    Keras saves only children that are layers, metrics, optimizers or losses; of these a loss has no
    variables of its own.  So this class is used as a subclass of its Keras' Loss (`derived`).
    """

    def __init__(self, aggregator: Aggregator) -> None:
        super().__init__(name="compression_state")
        self._aggregator = aggregator
        self.steps = 0  # the optimizer's iterations in the file being loaded
        self.from_assets = False  # whether that file holds the state among its assets

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
    """The methods of a wrapped optimizer that Keras calls to save and load it."""

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
        super().set_weights(weights)  # loading a whole model's .h5 file calls this too
        if in_graph_of_tensorflow_1():
            return  # There the values of variables cannot be read.
        steps = int(self.iterations.numpy())
        self._grace_state._aggregator.state.lose("What was given to set_weights", steps)
