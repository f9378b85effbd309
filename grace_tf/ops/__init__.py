"""The operations compressors are made of: one function an operation.

Each runs natively on the CPU when the native library is there, and otherwise (other devices, XLA,
no compiler at installation) through `grace_tf.ops.reference`, which defines the meaning. Both give
the same bits. Tensors are vectors of static length, float32 or int32.

The modules have operations on whole lists of tensors, of any static shape. Where
`dispatch.runs_here` says so they run natively, one node a list; else through the module of
`reference` with the same name. Both give the same bits, unless the module says otherwise. The parts
of a payload are those of the tensors, one after another. `selection` says what encoders get and
return.

The unit of the wire is the 32-bit word, an int32. Codes of b bits are stored as bit planes: 32
consecutive elements make a group of b words; word p of a group holds bit p of the 32 codes, that
of element i in its bit i. Bits beyond the last element are zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from grace_tf.ops import dispatch, quantization, reference, selection, signs
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.arguments import Key
from grace_tf.ops.backend.words import packed_words
from grace_tf.ops.dispatch import chosen, using

__all__ = [
    "Key",
    "all_finite",
    "block_scales",
    "dequantize",
    "dequantize_sum",
    "gather",
    "pack_signs",
    "packed_words",
    "quantize",
    "random_indices",
    "random_normal",
    "random_words",
    "scatter_sum",
    "signed_sums",
    "top_k",
    "uniform",
    "unpack_signs",
    "using",
    "vote_signs",
]


def random_words(n: int, key: Key) -> tf.Tensor:
    """The first n words of the key's stream, uniform over all bit patterns, as int32 [n]."""
    arguments.check_length(n)
    arguments.check_key(key)
    return chosen().random_words(n, key)


def uniform(n: int, key: Key) -> tf.Tensor:
    """float32 [n], uniform on [0, 1): the upper 24 bits of each random word, times 2^-24."""
    arguments.check_length(n)
    arguments.check_key(key)
    return chosen().uniform(n, key)


def random_normal(n: int, key: Key) -> tf.Tensor:
    """float32 [n], nearly standard normal: the sum of twelve uniforms, minus six.

    Element i sums the uniforms 12 i to 12 i + 11 of the key's stream, in integers. It needs no
    logarithm, whose last bits differ between machines. The tails end at +-6.
    """
    if not 1 <= n <= (2**31 - 1) // 12:
        raise ValueError(f"n must be from 1 to {(2**31 - 1) // 12}, not {n}.")
    arguments.check_key(key)
    return reference.random_normal(n, key)


def random_indices(n: int, k: int, key: Key) -> tf.Tensor:
    """k distinct numbers from 0 to n - 1, ascending, int32 [k]: a uniform subset, drawn in O(k).

    They are what 0 to k - 1 become in a permutation of [0, n). With b = ceil(sqrt(n)) and
    a = ceil(n / b), a number is L * b + R, L < a, R < b. Twelve rounds where n < 256, else six,
    take turns in L = (L + f(R)) mod a and R = (R + f(L)) mod b; a number that ends at n or above
    goes through them again. Each f is a table of the key's words w, one after another in the
    stream: f(j) = floor(w[j] * a / 2^32), or b. 1 <= k <= n < 2^31, else ValueError.
    """
    arguments.check_length(n)
    arguments.check_key(key)
    if not 1 <= k <= n:
        raise ValueError(f"k must be from 1 to {n}, the number of elements, not {k}.")
    return chosen().random_indices(n, k, key)


def pack_signs(x: tf.Tensor) -> tf.Tensor:
    """The signs of float32 x [n] as int32 [ceil(n / 32)]: bit 1 where x >= 0.

    Zero of either sign gives 1, NaN gives 0. Wire: 1 bit an element.
    """
    return signs.sign_list([arguments.floats(x)], 1.0)[0]


def unpack_signs(words: tf.Tensor, n: int) -> tf.Tensor:
    """float32 [n] of +1 and -1 from the words [ceil(n / 32)] of `pack_signs`."""
    words = arguments.tensor(words, tf.int32, 1, "words")
    arguments.check_length(n)
    return signs.vote_list(words[None], [[n]], 1.0)[0]


def vote_signs(words: tf.Tensor, n: int) -> tf.Tensor:
    """The sign of the sum of N workers' signs, float32 [n]; a tie gives 0.

    words is int32 [N, ceil(n / 32)], a row of `pack_signs` per worker.
    """
    words = arguments.tensor(words, tf.int32, 2, "words")
    arguments.check_length(n)
    return signs.vote_list(words, [[n]], 1.0)[0]


def block_scales(x: tf.Tensor, block: int, norm: str) -> tf.Tensor:
    """The scale of each `block` elements of float32 x [n], as float32 [ceil(n / block)].

    norm "max" is the largest |x|. "l2" is the root of the sum of squares, in float64, the squares
    summed over adjacent pairs, then pairs of pairs, as if the block were filled up with zeros to a
    power of two; denormals count as zero. A scale below 2^-110 becomes 0, which makes `quantize`
    send zeros. A NaN in a block makes its scale NaN. A block of n or more means one scale.
    """
    x = arguments.floats(x)
    arguments.count_blocks(x.shape[0], block)
    if norm not in ("max", "l2"):
        raise ValueError(f"There is no norm {norm!r}; there are max and l2.")
    return chosen(x).block_scales(x, block, norm)


def quantize(
    x: tf.Tensor, scales: tf.Tensor, levels: int, bits: int, block: int, key: Key | None
) -> tf.Tensor:
    """Codes of float32 x [n] in `bits` bits, int32 [bits * ceil(n / 32)].

    With c the scale of the element's block and s = levels, in float32:

        a = |x| * (s / c)                                 0 where c < 2^-110
        q = min(floor(a + u), s)                          with a key: unbiased rounding
        q = min(rint(a), s)                               without: ties to even
        code = s + q where x >= 0, s - q elsewhere        0 to 2 s

    u is `uniform(n, key)` for more than 127 levels. For fewer 16 random bits an element suffice,
    and the bias is at most 2^-17 of a level: u of element i is (h + 1/2) / 2^16, with h the lower
    half of word 16 * (i // 32) + i % 16 of the key's stream where i % 32 < 16, and its upper half
    elsewhere.

    A denormal x counts as zero, and so does a denormal s / c (a scale above s * 2^126). Codes of
    elements that are not finite mean nothing. Wire: `bits` an element; 2 <= bits <= 16 and
    2 s + 1 <= 2^bits, else ValueError.
    """
    x = arguments.floats(x)
    scales = arguments.tensor(scales, tf.float32, 1, "scales")
    arguments.check_codes(levels, bits)
    arguments.check_size(scales, arguments.count_blocks(x.shape[0], block), "scales")
    if key is not None:
        arguments.check_key(key)
    return chosen(x).quantize(x, scales, levels, bits, block, key)


def dequantize(
    words: tf.Tensor, scales: tf.Tensor, n: int, levels: int, bits: int, block: int
) -> tf.Tensor:
    """float32 [n] from the words of `quantize`: (code - s) * (c / s), c / s being 0 if c < 2^-110.

    A code above 2 s, which `quantize` never writes, counts as 2 s.
    """
    words = arguments.tensor(words, tf.int32, 1, "words")
    scales = arguments.tensor(scales, tf.float32, 1, "scales")
    return dequantize_sum(words[None], scales[None], n, levels, bits, block)


def dequantize_sum(
    words: tf.Tensor, scales: tf.Tensor, n: int, levels: int, bits: int, block: int
) -> tf.Tensor:
    """The sum of N workers' `dequantize`, float32 [n], in worker order: ((0 + d_0) + d_1) + ...

    words is int32 [N, bits * ceil(n / 32)], scales float32 [N, ceil(n / block)]. A partial sum
    that is denormal becomes 0.
    """
    words = arguments.tensor(words, tf.int32, 2, "words")
    scales = arguments.tensor(scales, tf.float32, 2, "scales")
    arguments.check_quantized(words, scales, n, levels, bits, block)
    if words.shape[0] != scales.shape[0]:
        raise ValueError(f"{words.shape[0]} workers' words came with {scales.shape[0]} of scales.")
    code = quantization.Code(levels, bits, block, "max")
    return quantization.decode(words, scales, [[n]], 1.0, code)[0][0]


def top_k(x: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The k elements of float32 x [n] largest in magnitude: values [k], int32 indices [k].

    Magnitudes compare as integers, the bits without the sign, so NaN is above infinity and
    denormals are themselves; of equal ones the lower index wins. Indices ascend and the values are
    x's own bits. 1 <= k <= n, else ValueError.
    """
    x = arguments.floats(x)
    if not 1 <= k <= x.shape[0]:
        raise ValueError(f"k must be from 1 to {x.shape[0]}, the number of elements, not {k}.")
    values, indices, _, _ = selection.top_k_list([x], None, 1.0, [k])
    return values, indices


def gather(x: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    """float32 x [n] at int32 indices [k]: float32 [k]. An index outside x is an error."""
    x = arguments.floats(x)
    indices = arguments.tensor(indices, tf.int32, 1, "indices")
    return chosen(x).gather(x, indices)


def scatter_sum(
    values: tf.Tensor, indices: tf.Tensor, counts: tf.Tensor | None, n: int
) -> tf.Tensor:
    """The sum of N workers' sparse vectors, float32 [n]: from zero, added in worker order.

    values is float32 [N, k], indices int32 [N, k], ascending and unique within a worker. Of worker
    w only the first counts[w] entries count (counts int32 [N]), or all without counts. Denormals,
    given or arising, count as zero. An index outside [0, n) among the entries that count is an
    error natively and ignored by the reference.
    """
    values = arguments.tensor(values, tf.float32, 2, "values")
    indices = arguments.tensor(indices, tf.int32, 2, "indices")
    if values.shape != indices.shape:
        raise ValueError(f"values {values.shape} and indices {indices.shape} differ in shape.")
    if counts is not None:
        counts = arguments.tensor(counts, tf.int32, 1, "counts")
        arguments.check_size(counts, values.shape[0], "counts")
    arguments.check_length(n)
    counts = None if counts is None else counts[:, None]
    return selection.scatter_list(values, indices, counts, [values.shape[1]], [[n]], 1.0)[0][0]


def signed_sums(
    xs: Sequence[tf.Tensor], count: int, key: Key, when: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Adds up elements of float32 tensors, each with a random sign, and also adds up their squares.

    The elements of all tensors are counted one after another. Element i is added to sum i % count.
    It is subtracted instead where bit 31 - i % 32 of word i // 32 of the key's stream is set.

    Args:
      count: the number of sums; 0 for the elements themselves instead of sums.
      when: a bool scalar. If it is false, nothing is computed.
    Returns: (float32 [count] sums, float64 sum of squares); if `when` is false, no sums and 0.

    The native operation and the reference add in different orders, so results may differ in their
    last bits.
    """
    xs = arguments.float_list(xs, "xs")
    arguments.check_key(key)
    when = arguments.tensor(when, tf.bool, 0, "when")
    module = native if dispatch.runs_on_cpu(xs) else reference
    return module.signed_sums(xs, count, key, when)


def all_finite(xs: Sequence[tf.Tensor]) -> tf.Tensor:
    """A bool scalar: whether these float32 tensors, of any shape, hold no NaN and no infinity."""
    xs = [tf.convert_to_tensor(x) for x in xs]
    for x in xs:
        if x.dtype != tf.float32:
            raise TypeError(f"all_finite takes float32 tensors, not {x.dtype.name}.")
    if not xs:
        return tf.constant(True)
    return (native if dispatch.runs_here(xs) else reference).all_finite(xs)
