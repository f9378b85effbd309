"""Uniform quantisation of whole lists of tensors: codes of a few bits, and scales for each block.

The encoder works on acc_i = xs_i * multiplier + residuals_i, as in `selection`.

The norms "max" and "l2" are those of `grace_tf.ops.quantize`. With "minmax" the levels run from the
smallest element of a block to its largest, in s = 2^bits - 1 steps, and a block has two scales, one
behind the other: c, half the distance of the two, and m, the smallest. In float32,

    c = max / 2 - min / 2               0 where it is below 2^-110
    a = (x - m) * (s / 2 / c)           0 where c is 0
    code = min(floor(a + u), s)         or min(rint(a), s), ties to even
    value = m + code * (c / (s / 2))    m where c is 0

A denormal counts as zero in each of these steps, as an input and as a result. Where max - min is
larger than the largest float, the upper codes stand for values that are not finite. Words hold
codes as `grace_tf.ops` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from grace_tf.ops import dispatch
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.arguments import ListKey, Strata
from grace_tf.ops.backend.outputs import Tensors, decoded, encoded, sizes_of, totals_of
from grace_tf.ops.backend.words import packed_words
from grace_tf.ops.reference import quantization as reference


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
    """What `encode` gives."""

    words: tf.Tensor
    """int32 [the sum of packed_words(n_i, bits)]."""
    scales: tf.Tensor
    """float32 [the sum of the tensors' numbers of blocks]."""
    residuals_out: list[tf.Tensor] | None
    """What the codes fail to carry, each of its tensor's shape; None without residuals."""
    finite: tf.Tensor
    """A bool scalar: whether everything that was encoded is finite."""


def encode(
    xs: Tensors,
    residuals: Tensors | None,
    multiplier: float,
    code: Code,
    random: ListKey | Strata | None,
) -> Quantized:
    """Codes, scales, what the codes fail to carry of each acc, and whether all accs are finite.

    random names the uniform numbers u of stochastic rounding; None rounds to the nearest. With n_i
    the number of elements of acc_i, the composition is, for each i and a norm "max" or "l2":

        scales_i = block_scales(acc_i, block, norm)           block None: n_i
        words_i = quantize(acc_i, scales_i, levels, bits, block, key with variable variables[i])
        residuals_out_i = acc_i - dequantize(words_i, scales_i, n_i, levels, bits, block)

    Raises ValueError and TypeError as those do.
    """
    xs, residuals = arguments.encoder_lists(xs, residuals)
    arguments.check_codes(code.levels, code.bits, code.norm)
    arguments.check_random(random, len(xs))
    lengths = _lengths(sizes_of([x.shape for x in xs]), code)
    if not dispatch.runs_here(xs):
        return Quantized(*reference.encode_list(xs, residuals, multiplier, code, random))
    order, size = (random.order, random.size) if isinstance(random, Strata) else (0, 0)
    key = random.key._replace(worker=random.worker) if size else random
    outputs = native._ops().grace_quantize_list(
        xs=xs,
        residuals=residuals,
        **_attributes(code),
        norm=arguments.NORMS.index(code.norm),
        stochastic=key is not None,
        strata=size,
        order=order,
        multiplier=float(np.float32(multiplier)),
        **native.streams(key or ListKey(0, 0, 0, (0,) * len(xs), 0)),
    )
    parts = [outputs.words, outputs.scales, outputs.residuals_out, outputs.finite]
    return Quantized(*encoded(parts, lengths, residuals))


def decode(
    words: tf.Tensor, scales: tf.Tensor, shapes: Sequence, factor: float | tf.Tensor, code: Code
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The sums over workers of what codes stand for, times a factor: (totals, finite).

    words is int32 [W, n] and scales float32 [W, m], a row of each per worker. The sums run from
    zero in worker order; a denormal one becomes 0. factor is a number or a float32 scalar, by which
    every element is multiplied, zeros too. The composition is, for each i,
    `dequantize_sum(words_i, scales_i, n_i, levels, bits, block) * factor`. The totals have the
    given shapes; finite says whether all of them are.
    """
    arguments.check_codes(code.levels, code.bits, code.norm)
    shapes = arguments.shape_list(shapes)
    word_count, scale_count = _lengths(sizes_of(shapes), code)
    words, scales = arguments.rows(
        words=(words, tf.int32, word_count), scales=(scales, tf.float32, scale_count)
    )
    if not dispatch.runs_here([words, scales]):
        return reference.decode_list(words, scales, shapes, factor, code)
    finite, totals = native._ops().grace_dequantize_list(
        words=words,
        scales=scales,
        factor=arguments.factor_of(factor),
        **_attributes(code),
        norm=2 if code.norm == "minmax" else 0,
        **totals_of(shapes),
    )
    return decoded([totals, finite], shapes)


def _attributes(code: Code) -> dict:
    """The code as attributes of a node."""
    return {"levels": code.levels, "bits": code.bits, "block": code.block or 0}


def _lengths(sizes: Sequence[int], code: Code) -> tuple[int, int]:
    """How many words and scales tensors of these sizes have."""
    scales = sum(reference.count_scales(n, code) for n in sizes)
    return sum(packed_words(n, code.bits) for n in sizes), scales
