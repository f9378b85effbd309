"""The first step's comparison: silent disagreement between workers is the worst bug there is.

In come a plan and the variables; the digests of all workers are gathered eagerly (also while a
graph is traced around), and every worker raises the same sentence where they differ.  Workers of a
MultiWorkerMirroredStrategy are not compared: it broadcasts the weights itself, and its replicas
cannot communicate eagerly while they are traced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from grace_tf import wire
from grace_tf.plan import Plan
from grace_tf.version import __version__

_WAYS_OUT = (
    ("version", "the grace_tf versions differ: install the same one everywhere"),
    ("seed", "the seeds differ: give wrap() or Aggregator() the same seed everywhere"),
    (
        "plan",
        "the plans differ: wrap the same model with the same compressor and keywords everywhere",
    ),
    (
        "weights",
        "the weights differ: call grace_tf.broadcast(model.variables) before the first step, or "
        "add grace_tf.keras.Callback() to fit()",
    ),
)


def compare(group: Any, plan: Plan, variables: Sequence[Any]) -> None:
    """Raises RuntimeError, alike on every worker of the process group, where anything differs.

    Without `variables` the weights are not compared (a second plan of a run that has begun).
    """
    with tf.init_scope():
        weights = digest([v.numpy() for v in variables]) if variables else 0
        version = digest([np.frombuffer(f"{__version__}/{wire.VERSION}".encode(), np.uint8)])
        table = group.handshake((version, plan.seed, plan.digest, weights))
    for column, (_, way_out) in enumerate(_WAYS_OUT):
        values = [int(row[column]) for row in table]
        if len(set(values)) > 1:
            odd = [w for w, value in enumerate(values) if value != values[0]]
            raise RuntimeError(
                f"Workers cannot train together, {way_out} "
                f"(worker {', '.join(map(str, odd))} of {group.size} differs from worker 0)."
            )


def digest(arrays: Sequence[np.ndarray]) -> int:
    """A 56-bit digest of arrays: shapes, dtypes and bits."""
    told = hashlib.blake2b(digest_size=7)
    for array in arrays:
        array = np.ascontiguousarray(array)
        told.update(f"{array.dtype}{array.shape}".encode())
        told.update(array.view(np.uint8).data if array.ndim else array.tobytes())
    return int.from_bytes(told.digest(), "little")
