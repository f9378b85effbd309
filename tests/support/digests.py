"""A short text by which processes compare arrays bit by bit."""

import hashlib

import numpy as np


def digest(arrays):
    """Of the bits of arrays, or of tensors, in their order."""
    told = hashlib.sha256()
    for each in arrays:
        told.update(np.ascontiguousarray(each).tobytes())
    return told.hexdigest()[:12]
