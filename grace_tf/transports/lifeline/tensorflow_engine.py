"""TensorFlow's collectives, for the lifeline: tells which errors may mean a lost worker, and aborts
all collectives of this process.

Another engine has an object with the same functions, such as `horovod.engine.Engine`.
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
    """Whether an error is of a kind that a lost worker causes on the other workers.

    All other errors keep their own message, also where TensorFlow ends a collective with them: an
    InvalidArgumentError is caused by the arguments of an operation, not by another worker.  The
    exception is a collective that met another collective: then another worker runs other code.
    """
    return met_another(error) or isinstance(error, _OF_A_LOSS)


def met_another(error: BaseException) -> bool:
    """Whether a collective has met another one, or one of another shape, of another worker."""
    kinds = tf.errors.InternalError, tf.errors.InvalidArgumentError
    return isinstance(error, kinds) and "ollective instance" in str(error)


def lost_a_peer(error: BaseException) -> bool:
    """Whether an error of this kind comes from a collective, and so proves that a worker is lost.

    Errors of the same kind may also come from a file system or a data service.
    """
    return isinstance(error, _OF_A_LOSS) and "Collective" in str(error)


def abort(sentence: str) -> None:
    """Ends the collectives that this process waits in, and all later ones, with this sentence."""
    if context.context()._initialized:
        context.context().abort_collective_ops(tf.errors.UNAVAILABLE, sentence)


def quiet() -> None:
    """Does nothing: after `abort` no thread of TensorFlow writes to stderr."""
