"""The meaning of every operation, in plain TensorFlow; the native library is tested against it.

Arguments arrive checked (see `grace_tf.ops`): vectors of static shape, Python integers for sizes.
Two rules make results independent of how a machine treats denormal numbers: whatever compares
magnitudes or signs works on the bits as integers, and a denormal (|x| < 2^-126) counts as zero
wherever arithmetic is done. Under XLA the compiler may fuse a multiply and an add; everywhere else
the results are bit-equal on every machine.
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

_PLACES = np.arange(32, dtype=np.int32)  # of the bits of a word
_PHILOX = 1  # TF's number of the algorithm
_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000
_SMALLEST_NORMAL = 0x00800000
_SIGN = -(2**31)
SMALLEST_SCALE = 2.0**-110


def _bits(x: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(x, tf.int32)


def _flush(x: tf.Tensor) -> tf.Tensor:
    """x with every denormal replaced by +0."""
    return tf.where(_bits(x) & _MAGNITUDE < _SMALLEST_NORMAL, 0.0, x)


def _not_negative(x: tf.Tensor) -> tf.Tensor:
    bits = _bits(x)
    return ((bits >= 0) & (bits <= _INFINITY)) | (bits == _SIGN)


def _pad_to(x: tf.Tensor, length: int) -> tf.Tensor:
    """x [n, ...], its first axis filled up with zeros."""
    missing = length - x.shape[0]
    return tf.pad(x, [[0, missing]] + [[0, 0]] * (x.shape.rank - 1)) if missing else x


def _groups(n: int) -> int:
    return -(-n // 32)


def _pack(codes: tf.Tensor, bits: int) -> tf.Tensor:
    """int32 codes [n] to words: word p of a group of 32 codes holds bit p of them."""
    groups = _groups(codes.shape[0])
    codes = tf.reshape(_pad_to(codes, 32 * groups), [groups, 1, 32])
    planes = tf.bitwise.right_shift(codes, _PLACES[:bits, np.newaxis]) & 1
    # No two terms share a bit, so the sum is an "or", also where bit 31 makes it negative.
    words = tf.reduce_sum(tf.bitwise.left_shift(planes, _PLACES), axis=-1)
    return tf.reshape(words, [groups * bits])


def _unpack(words: tf.Tensor, n: int, bits: int) -> tf.Tensor:
    """The inverse of `_pack`: words to int32 codes [n]."""
    groups = _groups(n)
    words = tf.reshape(words, [groups, bits, 1])
    planes = tf.bitwise.right_shift(words, _PLACES) & 1
    codes = tf.reduce_sum(tf.bitwise.left_shift(planes, _PLACES[:bits, np.newaxis]), axis=1)
    codes = tf.reshape(codes, [32 * groups])
    return codes if n == 32 * groups else codes[:n]


def _low_word(value: int | tf.Tensor) -> tf.Tensor:
    """The low 32 bits of an integer of any width or sign, as uint64."""
    if isinstance(value, int):
        return tf.constant(value & 0xFFFFFFFF, tf.uint64)
    return tf.bitcast(tf.cast(value, tf.int64) & 0xFFFFFFFF, tf.uint64)


def _two_words(low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    return low | tf.bitwise.left_shift(high, tf.constant(32, tf.uint64))


def random_words(n: int, key) -> tf.Tensor:
    counter = _two_words(_low_word(key.step), _low_word(key.variable << 8 | key.draw))
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[n],
        key=tf.reshape(_two_words(_low_word(key.seed), _low_word(key.worker)), [1]),
        counter=tf.stack([tf.zeros_like(counter), counter]),
        alg=_PHILOX,
        dtype=tf.uint32,
    )
    return tf.bitcast(words, tf.int32)


def _top_24_bits(words: tf.Tensor) -> tf.Tensor:
    return tf.bitwise.right_shift(words, 8) & 0xFFFFFF


def uniform(n: int, key) -> tf.Tensor:
    return tf.cast(_top_24_bits(random_words(n, key)), tf.float32) * 2.0**-24


def random_normal(n: int, key) -> tf.Tensor:
    twelve = tf.reshape(_top_24_bits(random_words(12 * n, key)), [n, 12])
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


def pack_signs(x: tf.Tensor) -> tf.Tensor:
    return _pack(tf.cast(_not_negative(x), tf.int32), 1)


def unpack_signs(words: tf.Tensor, n: int) -> tf.Tensor:
    return tf.cast(2 * _unpack(words, n, 1) - 1, tf.float32)


def vote_signs(words: tf.Tensor, n: int) -> tf.Tensor:
    votes = tf.foldl(
        lambda total, own: total + (2 * _unpack(own, n, 1) - 1), words, tf.zeros([n], tf.int32)
    )
    return tf.cast(tf.sign(votes), tf.float32)


def _to_power_of_two(x: tf.Tensor) -> tf.Tensor:
    """x [m, n, ...], its second axis filled up with zeros to a power of two."""
    n = x.shape[1]
    missing = (1 << (n - 1).bit_length()) - n
    return tf.pad(x, [[0, 0], [0, missing]] + [[0, 0]] * (x.shape.rank - 2)) if missing else x


def _pairwise_sum(rows: tf.Tensor) -> tf.Tensor:
    """Sums each row of [m, n] over adjacent pairs, then pairs of pairs, and so on."""
    rows = _to_power_of_two(rows)
    while rows.shape[1] > 1:
        rows = rows[:, 0::2] + rows[:, 1::2]
    return rows[:, 0]


def _sum_by_halves(x: tf.Tensor) -> tf.Tensor:
    """Sums x [m, n, ...] over n: the upper half onto the lower, and so on."""
    x = _to_power_of_two(x)
    while x.shape[1] > 1:
        lower, upper = tf.split(x, 2, axis=1)
        x = lower + upper
    return tf.squeeze(x, 1)


def _compacted(numbers: tf.Tensor, which: tf.Tensor, room: int) -> tf.Tensor:
    """The numbers where `which` is true, moved to the front, followed by zeros: [room]."""
    # Static shapes, so that XLA can compile it: what does not count goes to one place at the end.
    ranks = tf.cumsum(tf.cast(which, tf.int32), exclusive=True)
    places = tf.where(which, ranks, room)[:, tf.newaxis]
    return tf.scatter_nd(places, numbers, [room + 1])[:room]


def _pack_fields(numbers: tf.Tensor, bits: int) -> tf.Tensor:
    """Numbers of 8 or 16 bits as words, the first in the lowest bits."""
    each = 32 // bits
    rows = tf.reshape(_pad_to(numbers, -(-numbers.shape[0] // each) * each), [-1, each])
    return tf.reduce_sum(tf.bitwise.left_shift(rows, np.arange(each, dtype=np.int32) * bits), 1)


def _unpack_fields(words: tf.Tensor, bits: int, n: int) -> tf.Tensor:
    """The inverse of `_pack_fields`, to n numbers."""
    places = np.arange(32 // bits, dtype=np.int32) * bits
    numbers = tf.bitwise.right_shift(words[:, tf.newaxis], places) & (2**bits - 1)
    return tf.reshape(numbers, [-1])[:n]


def block_scales(x: tf.Tensor, block: int, norm: str) -> tf.Tensor:
    n = x.shape[0]
    block = min(block, n)
    blocks = -(-n // block)
    rows = tf.reshape(_pad_to(x, blocks * block), [blocks, block])
    if norm == "max":
        # As integers NaN is the largest magnitude, so it is never lost in the maximum.
        scale = tf.bitcast(tf.reduce_max(_bits(rows) & _MAGNITUDE, axis=1), tf.float32)
        return tf.where(scale < SMALLEST_SCALE, 0.0, scale)
    scale = tf.sqrt(_pairwise_sum(tf.square(tf.cast(_flush(rows), tf.float64))))
    return tf.cast(tf.where(scale < SMALLEST_SCALE, tf.zeros_like(scale), scale), tf.float32)


def _per_element(per_block: tf.Tensor, n: int, block: int) -> tf.Tensor:
    """Repeats the value of each block over its elements: [ceil(n / block)] to [n]."""
    block = min(block, n)
    blocks = per_block.shape[0]
    return tf.reshape(tf.broadcast_to(per_block[:, tf.newaxis], [blocks, block]), [-1])[:n]


def _quotient(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """The correctly rounded float32 x / y.

    Graph optimisers turn a division by or of a constant into a product with a rounded reciprocal.
    In float64 that error stays below what a quotient of float32 keeps from a rounding boundary.
    """
    return tf.cast(tf.cast(x, tf.float64) / tf.cast(y, tf.float64), tf.float32)


def quantize(x, scales, levels: int, bits: int, block: int, key) -> tf.Tensor:
    u = None if key is None else uniform(x.shape[0], key)
    return quantize_with(x, scales, levels, bits, block, u)


def quantize_with(x, scales, levels: int, bits: int, block: int, u) -> tf.Tensor:
    """`quantize` with these numbers in [0, 1) in place of a key's stream."""
    n = x.shape[0]
    levels_f = tf.constant(levels, tf.float32)
    # The quotient of a huge scale is denormal, hence the flush.
    inverse = tf.where(scales < SMALLEST_SCALE, 0.0, _flush(_quotient(levels_f, scales)))
    a = _flush(tf.abs(x)) * _per_element(inverse, n, block)
    q = tf.round(a) if u is None else tf.floor(a + u)
    # Written as a comparison so that NaN, which compares false, becomes the top level.
    q = tf.cast(tf.where(q < levels_f, q, levels_f), tf.int32)
    return _pack(tf.where(_bits(x) < 0, levels - q, levels + q), bits)


def dequantize(words, scales, n: int, levels: int, bits: int, block: int) -> tf.Tensor:
    code = tf.minimum(_unpack(words, n, bits), 2 * levels)
    levels_f = tf.constant(levels, tf.float32)
    unit = tf.where(scales < SMALLEST_SCALE, 0.0, _quotient(scales, levels_f))
    return tf.cast(code - levels, tf.float32) * _per_element(unit, n, block)


def top_k(x: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    indices = tf.sort(tf.math.top_k(_bits(x) & _MAGNITUDE, k).indices)
    return tf.gather(x, indices), indices


def gather(x: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    return tf.gather(x, indices)


def scatter_sum(values, indices, counts, n: int) -> tf.Tensor:
    workers, k = values.shape
    if counts is None:
        counts = tf.fill([workers], k)

    def add(total, own):
        value, index, count = own
        used = (tf.range(k) < count) & (index >= 0) & (index < n)
        # One place beyond the end takes what is not used.
        index = tf.where(used, index, n)
        new = _flush(tf.gather(total, index) + _flush(value))
        return tf.tensor_scatter_nd_update(total, index[:, tf.newaxis], new)

    return tf.foldl(add, (values, indices, counts), tf.zeros([n + 1]))[:n]


def all_finite(xs: list[tf.Tensor]) -> tf.Tensor:
    finite = [tf.reduce_all(_bits(x) & _INFINITY < _INFINITY) for x in xs]
    return tf.reduce_all(tf.stack(finite)) if finite else tf.constant(True)
