"""Codes of eight bits, on whole lists of tensors: the dynamic tree, and powers of two.

A code is a byte: the sign bit of the element in its top bit, a magnitude below it. Four codes lie
in a word, the first in its lowest byte; the words of a tensor's codes follow those of the tensor
before it, and bytes beyond a tensor's last code are zero.

The encoders work on acc_i = xs_i * multiplier + residuals_i, as in `selection`. The decoders
sum what N workers sent, from zero and in worker order, a denormal partial sum becoming 0, and
return the sums times `factor`, of the given shapes, and whether every product is finite. So a zero
that is sent has no sign.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from grace_tf.ops import dispatch
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.arguments import ListKey
from grace_tf.ops.backend.outputs import ResidualsOut, Tensors, decoded, encoded, totals_of
from grace_tf.ops.reference import byte_codes as reference


def byte_words(n: int) -> int:
    """The words that n codes take."""
    return -(-n // 4)


def encode_tree(
    xs: Tensors, residuals: Tensors | None, multiplier: float, block: int | None
) -> tuple[tf.Tensor, tf.Tensor, ResidualsOut, tf.Tensor]:
    """The number of the dynamic tree nearest to each element, of its block's scale.

    A block is a multiple of 32 elements, None for the whole tensor. Its scale c is the largest
    |acc|, 0 where that is below 2^-110. With a = |acc| * (4 / c), 0 for a denormal acc and for a
    scale of 0, the code is the rounded minimum of seven lines through the tree's numbers:

        min over k of a * slope_k + start_k, to the nearest integer, ties to even, at most 127
        slope_0 = 10^6 / 4, start_0 = 0
        slope_k = 2^k 10^(7-k) / 36, start_k = (8 * 2^k - 9) / 9, k = 1 to 6

    Returns (codes, scales, residuals_out, finite): codes int32 and scales float32, both flat.
    """
    xs, residuals = arguments.encoder_lists(xs, residuals)
    _check_block(block)
    if not dispatch.runs_here(xs):
        return reference.encode_tree(xs, residuals, multiplier, block)
    outputs = native._ops().grace_encode_tree_list(
        xs=xs, residuals=residuals, multiplier=multiplier, block=block or 0
    )
    sizes = [x.shape.num_elements() for x in xs]
    return encoded(outputs, [_words(sizes), _scales(sizes, block)], residuals)


def decode_tree(
    codes: tf.Tensor, scales: tf.Tensor, shapes: Sequence, factor: float, block: int | None
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """What `encode_tree` encoded, from rows of workers: (totals, finite).

    The number of code c > 0, with k + 1 binary digits, is (9 (c + 1) - 8 * 2^k) * unit_k, where
    unit_k = 10^(k-7) / 2^k: 127 is exactly 1. A scale below 2^-110 counts as 0.
    """
    _check_block(block)
    shapes = arguments.shape_list(shapes)
    sizes = [shape.num_elements() for shape in shapes]
    codes, scales = arguments.rows(
        codes=(codes, tf.int32, _words(sizes)), scales=(scales, tf.float32, _scales(sizes, block))
    )
    if not dispatch.runs_here([codes, scales]):
        return reference.decode_tree(codes, scales, shapes, factor, block)
    outputs = native._ops().grace_decode_tree_list(
        codes=codes, scales=scales, factor=factor, block=block or 0, **totals_of(shapes)
    )
    return decoded(outputs, shapes)


def encode_powers(
    xs: Tensors, residuals: Tensors | None, multiplier: float, key: ListKey
) -> tuple[tf.Tensor, ResidualsOut, tf.Tensor]:
    """Each element rounded at random to one of the powers of two beside it.

    With h the 16 random bits of the key's stream (`grace_tf.ops.quantize` says which) and m the
    bits of |acc|, the exponent is e = (m + 128 h + 64) >> 23, so that it is the upper one with the
    probability mantissa / 2^23, to 2^-17. The code is e - 32, but 0, which stands for zero, where
    that is negative, and 127 where it is above.

    Returns (codes, residuals_out, finite): codes int32, flat.
    """
    xs, residuals = arguments.encoder_lists(xs, residuals)
    arguments.check_list_key(key, len(xs))
    if not dispatch.runs_here(xs):
        return reference.encode_powers(xs, residuals, multiplier, key)
    outputs = native._ops().grace_encode_powers_list(
        xs=xs, residuals=residuals, multiplier=multiplier, **native.streams(key)
    )
    return encoded(outputs, [_words([x.shape.num_elements() for x in xs])], residuals)


def decode_powers(
    codes: tf.Tensor, shapes: Sequence, factor: float
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """What `encode_powers` encoded, from rows of workers: (totals, finite).

    Code c > 0 is 2^(c - 95): 2^-94 to 2^32.
    """
    shapes = arguments.shape_list(shapes)
    words = _words([shape.num_elements() for shape in shapes])
    (codes,) = arguments.rows(codes=(codes, tf.int32, words))
    if not dispatch.runs_here([codes]):
        return reference.decode_powers(codes, shapes, factor)
    outputs = native._ops().grace_decode_powers_list(
        codes=codes, factor=factor, **totals_of(shapes)
    )
    return decoded(outputs, shapes)


def _check_block(block: int | None) -> None:
    if block is not None and (block < 32 or block % 32):
        raise ValueError(f"block must be a multiple of 32 or None, not {block}.")


def _words(sizes: Sequence[int]) -> int:
    return sum(byte_words(n) for n in sizes)


def _scales(sizes: Sequence[int], block: int | None) -> int:
    return sum(arguments.count_blocks(n, block or n) for n in sizes)
