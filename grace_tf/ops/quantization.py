"""Uniform quantisation of whole lists of tensors: codes of a few bits, and scales for each block.

The operations run natively, one node a list, where `lists.runs_here` says so, and else through
`grace_tf.ops.reference.quantization`. Both give the same bits. They work on

    acc_i = xs_i * multiplier + residuals_i

without the product where the multiplier is 1.0 and without the sum where residuals is None.

The norms "max" and "l2" are those of `grace_tf.ops.quantize`. With "minmax" the levels run from the
smallest element of a block to its largest, in s = 2^bits - 1 steps, and a block has two scales, one
behind the other: c, half the distance of the two, and m, the smallest. In float32,

    c = max / 2 - min / 2               0 where it is below 2^-110
    a = (x - m) * (s / 2 / c)           0 where c is 0
    code = min(floor(a + u), s)         or min(rint(a), s), ties to even
    value = m + code * (c / (s / 2))    m where c is 0

Denormals, given or arising, count as zero in all of it. Where max - min is beyond the largest
float, so is what the upper codes stand for. Words hold codes as `grace_tf.ops` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from grace_tf import ops
from grace_tf.ops import lists
from grace_tf.ops.backend import arguments
from grace_tf.ops.backend.arguments import ListKey, Strata
from grace_tf.ops.reference import quantization as reference

__all__ = ["Code", "Strata", "decode", "encode"]


class Code(NamedTuple):
    """How a list is encoded."""

    levels: int
    """On each side of zero; for minmax the steps, 2^bits - 1."""
    bits: int
    """Of a code, 2 to 16."""
    block: int | None
    """The elements of a block; None for whole tensors."""
    norm: str
    """max, l2 or minmax."""


def encode(
    xs: Sequence[tf.Tensor],
    residuals: Sequence[tf.Tensor] | None,
    multiplier: float,
    code: Code,
    random: ListKey | Strata | None,
) -> lists.Quantized:
    """Codes, scales, what the codes fail to carry of each acc, and whether all accs are finite.

    random names the uniform numbers u of stochastic rounding; None rounds to the nearest.
    """
    if lists.runs_here(xs):
        return lists.quantize_list(xs, residuals, multiplier, *code, random)
    xs = arguments.float_list(xs, "xs")
    residuals = arguments.residual_list(residuals, xs)
    arguments.check_codes(code.levels, code.bits, code.norm)
    arguments.check_random(random, len(xs))
    accs = xs if multiplier == 1.0 else [x * multiplier for x in xs]
    accs = [acc + r for acc, r in zip(accs, residuals)] if residuals else accs
    words, scales, kept = [], [], []
    for i, acc in enumerate(accs):
        x = tf.reshape(acc, [-1])
        u = reference.uniforms(x.shape[0], random, i)
        own_words, own_scales = reference.encode(x, code, u)
        words.append(own_words)
        scales.append(own_scales)
        if residuals:
            back = reference.decode(own_words[None], own_scales[None], x.shape[0], code)
            kept.append(acc - tf.reshape(back, acc.shape))
    joined = tf.concat(words, 0), tf.concat(scales, 0)
    return lists.Quantized(*joined, kept if residuals else None, ops.all_finite(accs))


def decode(
    words: tf.Tensor, scales: tf.Tensor, shapes: Sequence, factor: float, code: Code
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The sums over workers of what codes stand for, times a factor, of these shapes.

    words is int32 [W, n] and scales float32 [W, m], a row of each per worker. The sums run from
    zero in worker order; a denormal one becomes 0. Returns them, and whether all are finite.
    """
    if lists.runs_here([words, scales]):
        factor = tf.constant(factor, tf.float32)
        return lists.dequantize_list(words, scales, shapes, factor, *code)
    shapes = arguments.shape_list(shapes)
    sizes = [shape.num_elements() for shape in shapes]
    counts = [ops.packed_words(n, code.bits) for n in sizes]
    blocks = [reference.count_scales(n, code) for n in sizes]
    words = tf.split(arguments.tensor(words, tf.int32, 2, "words"), counts, 1)
    scales = tf.split(arguments.tensor(scales, tf.float32, 2, "scales"), blocks, 1)
    totals = [
        tf.reshape(reference.decode(own, c, n, code), shape)
        for own, c, n, shape in zip(words, scales, sizes, shapes)
    ]
    totals = totals if factor == 1.0 else [total * factor for total in totals]
    return totals, ops.all_finite(totals)
