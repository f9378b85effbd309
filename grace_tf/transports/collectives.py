"""Recognises errors of TensorFlow's collectives, and aborts all collectives of this process."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.eager import context


def may_have_failed(error: BaseException) -> bool:
    """Whether an error may be that of a collective, so come of what another worker did."""
    kinds = (
        tf.errors.AbortedError,
        tf.errors.CancelledError,
        tf.errors.DeadlineExceededError,
        tf.errors.UnavailableError,
    )
    collective = isinstance(error, tf.errors.OpError) and "ollective" in str(error)
    return isinstance(error, kinds) or collective


def abort(sentence: str) -> None:
    """Ends the collectives that this process waits in, and all later ones, with this sentence."""
    if context.context()._initialized:
        context.context().abort_collective_ops(tf.errors.UNAVAILABLE, sentence)
