"""TensorFlow's collectives as the lifeline sees them: which errors may mean a lost worker, and how
all collectives of this process are aborted.

Another engine has an object with the same functions, as `horovod.engine.Engine`.
"""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.eager import context

_OF_A_LOSS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


def may_have_failed(error: BaseException) -> bool:
    """Whether an error is of a kind that a lost worker causes elsewhere.

    Others keep their own message, also where TensorFlow ends a collective with them: an
    InvalidArgumentError comes of an operation and its arguments, not of another worker.  The
    exception is a collective that met another one: then another worker is somewhere else.
    """
    met = isinstance(error, tf.errors.InternalError) and "Collective instance" in str(error)
    return met or isinstance(error, _OF_A_LOSS)


def lost_a_peer(error: BaseException) -> bool:
    """Whether an error of such a kind is a collective's, so that it means a lost worker by itself.

    A file system or a data service may be unavailable too.
    """
    return isinstance(error, _OF_A_LOSS) and "Collective" in str(error)


def abort(sentence: str) -> None:
    """Ends the collectives that this process waits in, and all later ones, with this sentence."""
    if context.context()._initialized:
        context.context().abort_collective_ops(tf.errors.UNAVAILABLE, sentence)


def quiet() -> None:
    """Nothing that a loss has started writes to stderr after `abort`."""
