"""Digits -1, 0 and 1 of whole lists of tensors, packed into words, and their scales.

A word holds D digits. Words come in groups of 16, and digit d of word j of a group is element
16 d + j of the group. The last group of a tensor has as many words as it needs, w; digit d of its
word j is its element w d + j. Digits beyond the last element are zero. `bits` says what a word is:

  None    trits: D = 20; the nearest integer to 2^32 times the balanced ternary fraction of its
          digits, t_0 / 3 + t_1 / 9 + …
  2..16   fields of that many bits: D = ⌊32 / bits⌋; the sum of t_d 2^(bits d). Words of several
          workers may be added up as long as no sum of digits exceeds 2^(bits - 1) - 1.

The encoders work on acc_i = xs_i * multiplier, xs_i itself where the multiplier is 1.0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from grace_tf.ops import dispatch
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.arguments import ListKey
from grace_tf.ops.backend.outputs import Tensors, decoded, scalar, totals_of, vector
from grace_tf.ops.reference import all_finite
from grace_tf.ops.reference import ternary as reference
from grace_tf.ops.reference.lists import accs, sum_each


def word_count(n: int, bits: int | None) -> int:
    """How many words hold n digits."""
    if bits is not None and not 2 <= bits <= 16:
        raise ValueError(f"A field has 2 to 16 bits, not {bits}.")
    return -(-n // reference.digits_of(bits))


def scales_of(xs: Tensors, multiplier: float, clip: float | None) -> tuple[tf.Tensor, tf.Tensor]:
    """The scale of each acc: (scales float32 [N], finite).

    It is the largest magnitude, but at most `clip` standard deviations of the elements. Elements
    that are equal up to rounding are not clipped: where the deviation is below 2^-16 of the root
    mean square. A scale below 2^-110 is 0. finite says whether all elements of every acc are. In
    float64:

        sums        of each 2048 elements sixteen, each of every sixteenth element, one after
                    another, denormals being zero; these added over adjacent pairs, then pairs of
                    pairs, as if filled up with zeros to a power of two; and so the 2048s'
        deviation   √(Σx²·(1/n) − (Σx·(1/n))²)
    """
    xs = arguments.float_list(xs, "xs")
    clip = float(np.float32(clip or 0.0))
    if not dispatch.runs_here(xs):
        whole = accs(xs, None, multiplier)
        return tf.stack([reference.scale(acc, clip) for acc in whole]), all_finite(whole)
    scales, finite = native._ops().grace_ternary_scales_list(
        xs=xs, multiplier=float(np.float32(multiplier)), clip=clip
    )
    return vector(scales, len(xs)), scalar(finite)


def encode(
    xs: Tensors,
    multiplier: float,
    own: tf.Tensor,
    scales: tf.Tensor,
    bits: int | None,
    key: ListKey,
) -> tf.Tensor:
    """The digits of each acc, int32 [the sum of word_count(n_i, bits)], with the sign of acc.

    own and scales are float32 [N]; with u the uniform numbers of 16 random bits of the key's stream
    (`grace_tf.ops.quantize` says which), in float32,

        a = min(|acc|, own) * (1 / scale)     denormal acc and 1 / scale count as 0
        digit = 0 where a + u < 1, else ±1    1 / scale is 0 where the scale is below 2^-110

    so that digit * scale is acc on average, to 2^-17 of the scale, if acc is clipped to ±own and
    own is at most the scale. Digits of elements that are not finite mean nothing.
    """
    xs = arguments.float_list(xs, "xs")
    arguments.check_list_key(key, len(xs))
    for name, x in (("own", own), ("scales", scales)):
        arguments.check_size(arguments.tensor(x, tf.float32, 1, name), len(xs), name)
    counts = [word_count(x.shape.num_elements(), bits) for x in xs]
    if not dispatch.runs_here([*xs, own, scales]):
        whole = enumerate(accs(xs, None, multiplier))
        parts = [reference.encode(x, own[i], scales[i], bits, key.stream(i)) for i, x in whole]
        return tf.concat(parts, 0)
    words = native._ops().grace_ternary_encode_list(
        xs=xs,
        own=own,
        scales=scales,
        bits=bits or 0,
        multiplier=float(np.float32(multiplier)),
        **native.streams(key),
    )
    return vector(words, sum(counts))


def decode(
    words: tf.Tensor, scales: tf.Tensor, shapes: Sequence, factor: float, bits: int | None
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The sums over workers of digit * scale, times a factor, of these shapes: (totals, finite).

    words is int32 [W, n] and scales float32 [W, N], a row of each per worker. The sums run from
    zero in worker order; a denormal one becomes 0. A scale below 2^-110 counts as 0. finite says
    whether all of every total is.
    """
    shapes = arguments.shape_list(shapes)
    sizes = [shape.num_elements() for shape in shapes]
    counts = [word_count(n, bits) for n in sizes]
    words, scales = arguments.rows(
        words=(words, tf.int32, sum(counts)), scales=(scales, tf.float32, len(shapes))
    )
    if not dispatch.runs_here([words, scales]):

        def decode_one(i, parts):
            return reference.decode(*parts, sizes[i], bits)

        lengths = counts, [1] * len(shapes)
        return sum_each([words, scales], lengths, shapes, factor, decode_one)
    outputs = native._ops().grace_ternary_decode_list(
        words=words,
        scales=scales,
        factor=tf.constant(factor, tf.float32),
        bits=bits or 0,
        **totals_of(shapes),
    )
    return decoded(outputs, shapes)
