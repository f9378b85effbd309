"""Compares the weights of all workers again during training.

After the comparison of the first step, a weight may still change on one worker only.  So every few
steps each worker sends a digest of its variables' values to the others over the lifeline.  There is
no collective, and no worker waits.  Where digests differ, all workers stop with one sentence.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from grace_tf.line.inputs import local, plain
from grace_tf.line.plan import Plan
from grace_tf.transports.lifeline import lifeline

_TOPIC = "weights"
_MARK = "_grace_checked"  # on variables that a step compares
_ROW = 1024  # words that are added up at once


class WeightDrift:
    """Compares the weights that one Aggregator trains."""

    def __init__(self) -> None:
        # Counters by plan, until it is deleted.  Workers compare in the same steps of the same
        # plans, so their counters are equal.
        self._counts: dict[str, itertools.count] = {}

    def watch(self, plan: Plan, variables: Sequence[Any], step: tf.Tensor) -> None:
        """Compares the variables in every `check_every`-th step; every step calls it.

        `step` counts the committed steps, the same on all workers.  A step without a comparison
        costs one condition; a comparison reads each weight once.
        """
        line = lifeline.current()
        if line is None or not plan.check_every:
            return
        for variable in variables:
            setattr(plain(variable), _MARK, True)
        label = f"{plan.digest}/{plan.first_key}"
        if label not in self._counts:
            self._counts[label] = itertools.count()
            weakref.finalize(plan, self._counts.pop, label, None).atexit = False
        count = self._counts[label]

        def send(step: np.ndarray, digest: np.ndarray) -> np.ndarray:
            compare_weights(line, f"{label}/{next(count)}", f"step {int(step)}", int(digest))
            return np.bool_(True)

        def compare():
            sent = tf.numpy_function(send, [step, digest_of_weights(variables)], tf.bool)
            with tf.control_dependencies([sent]):
                return tf.constant(True)

        due = tf.equal((step + 1) % plan.check_every, 0)
        tf.cond(due, compare, lambda: tf.constant(False))


def checked(variable: Any) -> bool:
    """Whether steps of this process compare the variable between processes."""
    return getattr(plain(variable), _MARK, False)


def compare_weights(line: Any, label: str, when: str, digest: int) -> None:
    """Sends this worker's digest to the others; stops all where one differs from worker 0's.

    `label` names the comparison on all workers; `when` names the moment in the error message.
    """
    with line.changed:
        line.on(_TOPIC, functools.partial(_hear, line))
        line.tell(_TOPIC, [label, when, digest])
        _hear(line, line.rank, [label, when, digest])


def digest_of_weights(variables: Sequence[Any]) -> tf.Tensor:
    """A digest of the variables' bits, an int64: a sum of their words, each with an odd weight.

    Every place of every variable has a weight of its own, so words that change places count too.
    A difference in one word always changes the digest; others escape it about once in 2^32.  All
    is exact modulo 2^64, so no order of additions matters, and every machine gets the same.
    """
    # In the host's memory: TensorFlow has no products of integers on GPUs.
    with tf.device("CPU:0"):
        digests = [_summed(_words(local(plain(v)).read_value()), "words") for v in variables]
        return _summed(tf.stack(digests or [tf.constant(0, tf.int64)]), "variables")


def _summed(words: tf.Tensor, what: str) -> tf.Tensor:
    """The weighted sum of int64 words: of rows first, then of their sums, likewise."""
    for level in itertools.count():
        size = words.shape[0]
        if missing := -size % _ROW or _ROW * (not size):
            words = tf.pad(words, [[0, missing]])
        words = tf.linalg.matvec(tf.reshape(words, [-1, _ROW]), _weights(f"{what} {level}"))
        if words.shape[0] == 1:
            return words[0]


@functools.cache
def _weights(name: str) -> np.ndarray:
    """The weights of a row: bits of a hash, so the same on every machine."""
    return np.frombuffer(hashlib.shake_128(name.encode()).digest(8 * _ROW), "<i8") | 1


def _words(value: tf.Tensor) -> tf.Tensor:
    """All bits of a tensor as a vector of int64, a word of at most 32 bits in each."""
    if value.dtype.size == 1 and value.dtype.is_floating:
        value = tf.cast(value, tf.float32)  # exact; tf.bitcast refuses these types
    if value.dtype.size > 1:
        value = tf.bitcast(value, tf.int16 if value.dtype.size == 2 else tf.int32)
    return tf.reshape(tf.cast(value, tf.int64), [-1])


_received: dict[tuple[int, str], dict[int, int]] = {}  # (lifeline, label): digests by worker


def _hear(line: Any, worker: int, data: Sequence[Any]) -> None:
    label, when, digest = data
    digests = _received.setdefault((id(line), label), {})
    digests[worker] = digest
    if len(digests) < line.size:
        return
    del _received[id(line), label]
    odd = [str(each) for each in sorted(digests) if digests[each] != digests[0]]
    if odd:
        line.stop(
            f"The weights of worker {', '.join(odd)} of {line.size} differ from worker 0's at "
            f"{when}: something has changed on one worker alone, such as a learning rate that a "
            "callback sets or a bit of its memory, or their hardware computes differently (then "
            "check_every=0 lets them train on)."
        )
