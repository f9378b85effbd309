"""How the compression state of a wrapped optimizer gets into Keras' files, and out of them.

In come Keras' calls while it saves or loads a model; the arrays of `State` go into the file or come
out of it.  The state is kept beside Keras' own variables: plain and wrapped optimizers load each
other's files.
"""

from __future__ import annotations

import os

import numpy as np

_FILE = "grace.npz"


class InFiles:
    """What a wrapped optimizer saves besides Keras' own variables; has `_aggregator()`."""

    def save_assets(self, path):
        np.savez(os.path.join(path, _FILE), **self._aggregator().state.arrays())

    def load_assets(self, path):
        file = os.path.join(path, _FILE) if path else ""
        if os.path.exists(file):
            with np.load(file) as arrays:
                self._aggregator().state.restore(dict(arrays))
