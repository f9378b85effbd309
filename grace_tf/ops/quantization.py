"""Uniform quantisation of whole lists of tensors: codes of a few bits, and scales for each block.

The operations run natively, one node a list, where `choice.runs_here` says so, and else through
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

import numpy as np
import tensorflow as tf

from grace_tf.ops import choice
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.arguments import ListKey, Strata
from grace_tf.ops.backend.outputs import dims_of, scalar, shaped_like, sizes_of
from grace_tf.ops.backend.words import packed_words
from grace_tf.ops.reference import all_finite
from grace_tf.ops.reference import quantization as reference

__all__ = [
    "Code",
    "Quantized",
    "Strata",
    "decode",
    "dequantize_list",
    "encode",
    "quantize_list",
]


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


class Quantized(NamedTuple):
    """What `quantize_list` gives."""

    words: tf.Tensor
    """int32 [the sum of packed_words(n_i, bits)]."""
    scales: tf.Tensor
    """float32 [the sum of the tensors' numbers of blocks]."""
    residuals_out: list[tf.Tensor] | None
    """What the codes fail to carry, each of its tensor's shape; None without residuals."""
    finite: tf.Tensor
    """A bool scalar: whether everything that was encoded is finite."""


def encode(
    xs: Sequence[tf.Tensor],
    residuals: Sequence[tf.Tensor] | None,
    multiplier: float,
    code: Code,
    random: ListKey | Strata | None,
) -> Quantized:
    """Codes, scales, what the codes fail to carry of each acc, and whether all accs are finite.

    random names the uniform numbers u of stochastic rounding; None rounds to the nearest.
    """
    if choice.runs_here(xs):
        return quantize_list(xs, residuals, multiplier, *code, random)
    xs = arguments.float_list(xs, "xs")
    residuals = arguments.residual_list(residuals, xs)
    arguments.check_codes(code.levels, code.bits, code.norm)
    arguments.check_random(random, len(xs))
    accs = xs if multiplier == 1.0 else [x * multiplier for x in xs]
    accs = [acc + r for acc, r in zip(accs, residuals)] if residuals else accs
    words, scales, residuals_out = [], [], []
    for i, acc in enumerate(accs):
        x = tf.reshape(acc, [-1])
        u = reference.uniforms(x.shape[0], random, i)
        own_words, own_scales = reference.encode(x, code, u)
        words.append(own_words)
        scales.append(own_scales)
        if residuals:
            back = reference.decode(own_words[None], own_scales[None], x.shape[0], code)
            residuals_out.append(acc - tf.reshape(back, acc.shape))
    joined = tf.concat(words, 0), tf.concat(scales, 0)
    return Quantized(*joined, residuals_out if residuals else None, all_finite(accs))


def decode(
    words: tf.Tensor, scales: tf.Tensor, shapes: Sequence, factor: float, code: Code
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The sums over workers of what codes stand for, times a factor, of these shapes.

    words is int32 [W, n] and scales float32 [W, m], a row of each per worker. The sums run from
    zero in worker order; a denormal one becomes 0. Returns them, and whether all are finite.
    """
    if choice.runs_here([words, scales]):
        factor = tf.constant(factor, tf.float32)
        return dequantize_list(words, scales, shapes, factor, *code)
    shapes = arguments.shape_list(shapes)
    sizes = [shape.num_elements() for shape in shapes]
    counts = [packed_words(n, code.bits) for n in sizes]
    blocks = [reference.count_scales(n, code) for n in sizes]
    words = tf.split(arguments.tensor(words, tf.int32, 2, "words"), counts, 1)
    scales = tf.split(arguments.tensor(scales, tf.float32, 2, "scales"), blocks, 1)
    totals = [
        tf.reshape(reference.decode(own, c, n, code), shape)
        for own, c, n, shape in zip(words, scales, sizes, shapes)
    ]
    totals = totals if factor == 1.0 else [total * factor for total in totals]
    return totals, all_finite(totals)


def quantize_list(
    xs: Sequence[tf.Tensor],
    residuals: Sequence[tf.Tensor] | None,
    multiplier: float,
    levels: int,
    bits: int,
    block: int | None,
    norm: str,
    key: ListKey | Strata | None,
) -> Quantized:
    """Encodes x_i * multiplier + residual_i for each x_i of a list.

    With acc_i that sum (no product where the multiplier is 1.0, no sum without residuals) and n_i
    its number of elements, the composition is, for each i:

        scales_i = block_scales(acc_i, block, norm)           block None: n_i
        words_i = quantize(acc_i, scales_i, levels, bits, block, key with variable variables[i])
        residuals_out_i = acc_i - dequantize(words_i, scales_i, n_i, levels, bits, block)

    key None rounds to the nearest; the module says what "minmax" means. Raises ValueError and
    TypeError as those do.
    """
    xs = arguments.float_list(xs, "xs")
    residuals = arguments.residual_list(residuals, xs)
    arguments.check_codes(levels, bits, norm)
    arguments.check_random(key, len(xs))
    sizes = sizes_of([x.shape for x in xs])
    order, size = (key.order, key.size) if isinstance(key, Strata) else (0, 0)
    key = key.key._replace(worker=key.worker) if size else key
    result = native._ops().grace_quantize_list(
        xs=xs,
        residuals=residuals,
        levels=levels,
        bits=bits,
        block=0 if block is None else block,
        norm=arguments.NORMS.index(norm),
        stochastic=key is not None,
        strata=size,
        order=order,
        variables=key.variables if key else [0] * len(xs),
        draw=key.draw if key else 0,
        multiplier=float(np.float32(multiplier)),
        **native._stream(key or ListKey(0, 0, 0, (), 0)),
    )
    return Quantized(
        native._shaped(result.words, sum(packed_words(n, bits) for n in sizes)),
        native._shaped(result.scales, _scales_size(sizes, block, norm)),
        shaped_like(result.residuals_out, [x.shape for x in xs]) if residuals else None,
        scalar(result.finite),
    )


def dequantize_list(
    words: tf.Tensor,
    scales: tf.Tensor,
    shapes: Sequence[Sequence[int]],
    factor: float | tf.Tensor,
    levels: int,
    bits: int,
    block: int | None,
    norm: str = "max",
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The sums over the workers of what `quantize_list` encoded, times a factor.

    words is int32 [N, n] and scales float32 [N, m], a row of each per worker; factor is a float32
    scalar, by which every element is multiplied, zeros too. The composition is, for each i,
    `dequantize_sum(words_i, scales_i, n_i, levels, bits, block) * factor`. Returns the products, of
    the given shapes, and a bool scalar: whether all of them are finite.
    """
    words = arguments.tensor(words, tf.int32, 2, "words")
    scales = arguments.tensor(scales, tf.float32, 2, "scales")
    arguments.check_codes(levels, bits, norm)
    sizes = sizes_of(shapes)
    arguments.check_size(words, sum(packed_words(n, bits) for n in sizes), "words")
    arguments.check_size(scales, _scales_size(sizes, block, norm), "scales")
    if words.shape[0] != scales.shape[0]:
        raise ValueError(f"{words.shape[0]} workers' words came with {scales.shape[0]} of scales.")
    finite, totals = native._ops().grace_dequantize_list(
        words=words,
        scales=scales,
        factor=arguments.factor_of(factor),
        levels=levels,
        bits=bits,
        block=0 if block is None else block,
        norm=2 if norm == "minmax" else 0,
        N=len(shapes),
        **dims_of(shapes),
    )
    return shaped_like(totals, shapes), scalar(finite)


def _scales_size(sizes: Sequence[int], block: int | None, norm: str) -> int:
    blocks = sum(min(n, 1) if block is None else arguments.count_blocks(n, block) for n in sizes)
    return (2 if norm == "minmax" else 1) * blocks
