"""The versions that must be equal on all workers, and the error message where they are not.

Workers of other versions may compute other bits, name the same variable differently, or start
TensorFlow's collectives in another order.  The errors that follow do not show this cause.
"""

from __future__ import annotations

import tensorflow as tf

from grace_tf.core.version import __version__

LONGEST = 80  # bytes
HERE = f"grace_tf {__version__} and TensorFlow {tf.__version__}"[:LONGEST]


def refusal(worker: int, size: int, theirs: str) -> str | None:
    """An error message if another worker's versions differ from those here; else None.

    Worker 0 calls it for each other worker that connects: `theirs` are that worker's versions.
    """
    if theirs == HERE:
        return None
    return (
        f"Workers cannot train together, their versions differ: worker {worker} of {size} has "
        f"{theirs}, worker 0 {HERE}; install the same ones everywhere."
    )
