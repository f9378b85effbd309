"""Random numbers of a key: words, uniform and normal numbers, subsets."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

_PHILOX = 1  # TF's number of the algorithm


def low_word(value: int | tf.Tensor) -> tf.Tensor:
    """The low 32 bits of an integer of any width or sign, as uint64."""
    if isinstance(value, int):
        return tf.constant(value & 0xFFFFFFFF, tf.uint64)
    return tf.bitcast(tf.cast(value, tf.int64) & 0xFFFFFFFF, tf.uint64)


def _two_words(low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    return low | tf.bitwise.left_shift(high, tf.constant(32, tf.uint64))


def _key_and_counter(key) -> tuple:
    place = key.variable << 8 | key.draw
    if all(isinstance(part, int) for part in (key.seed, key.worker, key.step)):
        low = [key.seed & 0xFFFFFFFF, key.step & 0xFFFFFFFF]
        high = [key.worker & 0xFFFFFFFF, place & 0xFFFFFFFF]
        first, counter = (a | b << 32 for a, b in zip(low, high))
        return np.array([first], np.uint64), np.array([0, counter], np.uint64)
    counter = _two_words(low_word(key.step), low_word(place))
    first = _two_words(low_word(key.seed), low_word(key.worker))
    return tf.reshape(first, [1]), tf.stack([tf.zeros_like(counter), counter])


def random_words(n: int, key) -> tf.Tensor:
    first, counter = _key_and_counter(key)
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[n],
        key=first,
        counter=counter,
        alg=_PHILOX,
        dtype=tf.uint32,
    )
    return tf.bitcast(words, tf.int32)


def top_24_bits(words: tf.Tensor) -> tf.Tensor:
    return tf.bitwise.right_shift(words, 8) & 0xFFFFFF


def uniform(n: int, key) -> tf.Tensor:
    return tf.cast(top_24_bits(random_words(n, key)), tf.float32) * 2.0**-24


def coarse_words(n: int, key) -> tf.Tensor:
    """The n coarse words of a key: 16 random bits each, above 0x8000.

    A random word serves two elements of a group of 32: element i has the lower half of word
    16 * (i // 32) + i % 16 where i % 32 < 16, and its upper half elsewhere.
    """
    words = tf.reshape(random_words(16 * (-(-n // 32)), key), [-1, 1, 16])
    halves = tf.concat([tf.bitwise.left_shift(words, 16), words & -(2**16)], 1)
    return tf.reshape(halves, [-1])[:n] | 0x8000


def coarse_uniform(n: int, key) -> tf.Tensor:
    """Numbers in [0, 1) of 16 random bits: the middles of 2^16 equal steps."""
    return tf.cast(top_24_bits(coarse_words(n, key)), tf.float32) * 2.0**-24


def random_normal(n: int, key) -> tf.Tensor:
    words = random_words(12 * n, key)
    if tf.executing_eagerly():
        # The first step draws for each variable; NumPy takes a fraction of the time of six calls.
        sums = np.sum((words.numpy() >> 8 & 0xFFFFFF).reshape([n, 12]), axis=1, dtype=np.int32)
        return tf.constant((sums - (6 << 24)).astype(np.float32) * np.float32(2.0**-24))
    twelve = tf.reshape(top_24_bits(words), [n, 12])
    return tf.cast(tf.reduce_sum(twelve, axis=1) - (6 << 24), tf.float32) * 2.0**-24


def _tables(a: int, b: int, rounds: int, key) -> list[tf.Tensor]:
    """The functions of the rounds: numbers below a for each R, below b for each L, and so on."""
    words = random_words(rounds // 2 * (a + b), key)
    words = tf.cast(words, tf.int64) & 0xFFFFFFFF
    tables = tf.split(words, [b, a] * (rounds // 2))
    return [
        tf.bitwise.right_shift(table * (b if i % 2 else a), tf.constant(32, tf.int64))
        for i, table in enumerate(tables)
    ]


def random_indices(n: int, k: int, key) -> tf.Tensor:
    b = math.isqrt(n - 1) + 1
    a = -(-n // b)
    tables = _tables(a, b, 12 if n < 256 else 6, key)

    def permuted(numbers):
        left, right = numbers // b, numbers % b
        for i, table in enumerate(tables):
            if i % 2:
                right = (right + tf.gather(table, left)) % b
            else:
                left = (left + tf.gather(table, right)) % a
        return left * b + right

    (numbers,) = tf.while_loop(
        lambda numbers: tf.reduce_any(numbers >= n),
        lambda numbers: (tf.where(numbers < n, numbers, permuted(numbers)),),
        (permuted(tf.range(k, dtype=tf.int64)),),
        maximum_iterations=a * b - n + 1,
    )
    return tf.sort(tf.cast(numbers, tf.int32))
