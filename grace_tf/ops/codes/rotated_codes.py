"""Codes of a few bits for the elements of rotated blocks, on whole lists of tensors.

The encoder works on acc_i = xs_i * multiplier + residuals_i, as in `selection`. A tensor is cut
into blocks; the last one is filled up with zeros to a power of two P, of 32 at least, and a whole
block has P = block elements. A block is encoded in this way, in float32 but where said otherwise:

    m = max |x|           below 2^-80 the scale and all codes are 0; where it is not finite, the
                          scale is NaN and all codes are 0
    f = 2^40 / 2^e        with 2^e <= m < 2^(e + 1)
    y = H D f x           D flips the signs of the elements whose bit of the key's stream is set: of
                          element j, bit j % 32 of word j / 32. H is the Walsh-Hadamard transform:
                          for distances P / 2, P / 4, ..., 1, each pair of elements (a, b) of that
                          distance becomes (a + b, a - b)
    q = sum of y y        in the order of `sum` below
    t = rint(|y| (r / sqrt(q / P)))     ties to even; the root in float64, rounded to float32
    code                  how many thresholds are at most t; its top bit is set where y < 0
    scale                 q / (A P f), or A / (C P f), in float64, with
                          A = sum of c |y| and C = sum of c c, c the centroid of the code

`reference.lloyd` has the centroids, the resolution r and the thresholds, numbers of steps 1 / r
that lie halfway between centroids. So a block stands for x' = D H (scale * (+-c)): the part of x
in that direction (A / (C P f)), or as much of the direction as makes <x', x> = <x, x>. A sum adds
up 32 numbers, of every 32nd element one after another, and then the upper half of the 32 to the
lower, and so on. All blocks of a tensor share D, so a block decodes without knowing its place.
Words hold codes as `grace_tf.ops` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from grace_tf.ops import dispatch
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.arguments import ListKey
from grace_tf.ops.backend.outputs import Tensors, decoded, encoded, sizes_of, totals_of
from grace_tf.ops.backend.words import packed_words
from grace_tf.ops.reference import lloyd
from grace_tf.ops.reference import rotated_codes as reference


class Code(NamedTuple):
    """How a list is encoded."""

    bits: int
    """Of a code, 1 to 8."""
    block: int
    """The elements of a block: a power of two, 32 to 2048."""
    least: bool
    """Whether scales give the least error, or decoded blocks that are unbiased."""


class Encoded(NamedTuple):
    """What `encode` gives."""

    words: tf.Tensor
    """int32 [the sum of word_count(n_i)]."""
    scales: tf.Tensor
    """float32 [the sum of the tensors' numbers of blocks]."""
    residuals_out: list[tf.Tensor] | None
    """What the codes fail to carry, each of its tensor's shape; None without residuals."""
    finite: tf.Tensor
    """A bool scalar: whether everything that was encoded is finite."""


def word_count(n: int, code: Code) -> int:
    """The words that the codes of n elements take."""
    return packed_words(reference.length_of(n, code.block), code.bits)


def encode(
    xs: Tensors, residuals: Tensors | None, multiplier: float, code: Code, key: ListKey
) -> Encoded:
    """Codes, scales, what they fail to carry of each acc, and whether all accs are finite.

    key names the stream of signs of each tensor, which the decoder draws again.
    Raises ValueError and TypeError for what is no list of float32 tensors of static shape.
    """
    xs, residuals = arguments.encoder_lists(xs, residuals)
    arguments.check_list_key(key, len(xs))
    multiplier = float(np.float32(multiplier))
    if not dispatch.runs_here(xs):
        return Encoded(*reference.encode_list(xs, residuals, multiplier, code, key))
    outputs = native._ops().grace_encode_rotated_list(
        xs=xs,
        residuals=residuals,
        multiplier=multiplier,
        **_attributes(code),
        **native.streams(key),
    )
    return Encoded(*encoded(outputs, _lengths(sizes_of([x.shape for x in xs]), code), residuals))


def decode(
    words: tf.Tensor,
    scales: tf.Tensor,
    shapes: Sequence,
    factor: float | tf.Tensor,
    code: Code,
    key: ListKey,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The sums over workers of what codes stand for, times a factor: (totals, finite).

    words is int32 [W, n] and scales float32 [W, m], a row of each per worker. The products of
    scales and centroids are added up from zero in worker order, in the rotated blocks; each sum is
    transformed back once, denormal results being 0, and multiplied by factor. A scale below 2^-95
    counts as 0. The totals have the given shapes; finite says whether all of them are.
    """
    shapes = arguments.shape_list(shapes)
    arguments.check_list_key(key, len(shapes))
    word_total, scale_total = _lengths(sizes_of(shapes), code)
    words, scales = arguments.rows(
        words=(words, tf.int32, word_total), scales=(scales, tf.float32, scale_total)
    )
    if not dispatch.runs_here([words, scales]):
        return reference.decode_list(words, scales, shapes, factor, code, key)
    outputs = native._ops().grace_decode_rotated_list(
        words=words,
        scales=scales,
        factor=arguments.factor_of(factor),
        **totals_of(shapes),
        **_attributes(code),
        **native.streams(key),
    )
    return decoded(outputs, shapes)


def _attributes(code: Code) -> dict:
    """The code as attributes of a node."""
    return {
        **code._asdict(),
        "centroids": lloyd.CENTROIDS[code.bits],
        "resolution": lloyd.resolution(code.bits),
    }


def _lengths(sizes: Sequence[int], code: Code) -> tuple[int, int]:
    """How many words and scales tensors of these sizes have."""
    scales = sum(arguments.count_blocks(n, code.block) for n in sizes)
    return sum(word_count(n, code) for n in sizes), scales
