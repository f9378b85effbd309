"""Codes of eight bits, on whole lists of tensors: the dynamic tree, and powers of two.

A code is a byte: the sign bit of the element in its top bit, a magnitude below it. Four codes lie
in a word, the first in its lowest byte; the words of a tensor's codes follow those of the tensor
before it, and bytes beyond a tensor's last code are zero.

The operations run natively, one node a list, where `choice.runs_here` says so, and else through
`grace_tf.ops.reference.byte_codes`, which defines the meaning; both give the same bits. The
encoders work on acc_i = xs_i * multiplier + residuals_i, as those of `selection`, and return as
they do the new residuals, acc minus what is sent, and whether every acc is finite. The decoders sum
what N workers sent, from zero and in worker order, a denormal partial sum becoming 0, and return
the sums times `factor`, of the given shapes, and whether every product is finite. So a zero that is
sent has no sign.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from grace_tf.ops import choice
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.arguments import ListKey
from grace_tf.ops.backend.outputs import (
    ResidualsOut,
    Tensors,
    dims_of,
    residuals_like,
    scalar,
    shaped_like,
)
from grace_tf.ops.reference import byte_codes as reference

__all__ = [
    "byte_words",
    "decode_powers",
    "decode_tree",
    "encode_powers",
    "encode_tree",
]


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
    xs, residuals = _checked(xs, residuals)
    _check_block(block)
    if not choice.runs_here(xs):
        return reference.encode_tree(xs, residuals or None, multiplier, block)
    codes, scales, residuals_out, finite = native._ops().grace_encode_tree_list(
        xs=xs, residuals=residuals, multiplier=multiplier, block=block or 0
    )
    sizes = [x.shape.num_elements() for x in xs]
    shapes = [[_words(sizes)], [_scales(sizes, block)]]
    return (
        *shaped_like([codes, scales], shapes),
        residuals_like(residuals_out, residuals),
        scalar(finite),
    )


def decode_tree(
    codes: tf.Tensor, scales: tf.Tensor, shapes: Sequence, factor: float, block: int | None
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """What `encode_tree` encoded, from rows of workers: (totals, finite).

    The number of code c > 0, with k + 1 binary digits, is (9 (c + 1) - 8 * 2^k) * unit_k, where
    unit_k = 10^(k-7) / 2^k: 127 is exactly 1. A scale below 2^-110 counts as 0.
    """
    codes = arguments.tensor(codes, tf.int32, 2, "codes")
    scales = arguments.tensor(scales, tf.float32, 2, "scales")
    _check_block(block)
    shapes = arguments.shape_list(shapes)
    sizes = [shape.num_elements() for shape in shapes]
    arguments.check_size(codes, _words(sizes), "codes")
    arguments.check_size(scales, _scales(sizes, block), "scales")
    if codes.shape[0] != scales.shape[0]:
        raise ValueError(f"{codes.shape[0]} workers' codes came with {scales.shape[0]} of scales.")
    if not choice.runs_here([codes, scales]):
        return reference.decode_tree(codes, scales, shapes, factor, block)
    totals, finite = native._ops().grace_decode_tree_list(
        codes=codes,
        scales=scales,
        N=len(shapes),
        factor=factor,
        block=block or 0,
        **dims_of(shapes),
    )
    return shaped_like(totals, shapes), scalar(finite)


def encode_powers(
    xs: Tensors, residuals: Tensors | None, multiplier: float, key: ListKey
) -> tuple[tf.Tensor, ResidualsOut, tf.Tensor]:
    """Each element rounded at random to one of the powers of two beside it.

    With w a word of the key's stream and m the bits of |acc|, the exponent is e = (m + (w >> 9))
    >> 23, so that it is the upper one with exactly the probability mantissa / 2^23. The code is
    e - 32, but 0, which stands for zero, where that is negative, and 127 where it is above.

    Returns (codes, residuals_out, finite): codes int32, flat.
    """
    xs, residuals = _checked(xs, residuals)
    arguments.check_list_key(key, len(xs))
    if not choice.runs_here(xs):
        return reference.encode_powers(xs, residuals or None, multiplier, key)
    codes, residuals_out, finite = native._ops().grace_encode_powers_list(
        xs=xs,
        residuals=residuals,
        multiplier=multiplier,
        variables=list(key.variables),
        draw=key.draw,
        **native._stream(key),
    )
    (codes,) = shaped_like([codes], [[_words([x.shape.num_elements() for x in xs])]])
    return codes, residuals_like(residuals_out, residuals), scalar(finite)


def decode_powers(
    codes: tf.Tensor, shapes: Sequence, factor: float
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """What `encode_powers` encoded, from rows of workers: (totals, finite).

    Code c > 0 is 2^(c - 95): 2^-94 to 2^32.
    """
    codes = arguments.tensor(codes, tf.int32, 2, "codes")
    shapes = arguments.shape_list(shapes)
    arguments.check_size(codes, _words([shape.num_elements() for shape in shapes]), "codes")
    if not choice.runs_here([codes]):
        return reference.decode_powers(codes, shapes, factor)
    totals, finite = native._ops().grace_decode_powers_list(
        codes=codes, N=len(shapes), factor=factor, **dims_of(shapes)
    )
    return shaped_like(totals, shapes), scalar(finite)


def _checked(xs, residuals) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    xs = arguments.float_list(xs, "xs")
    return xs, arguments.residual_list(residuals, xs)


def _check_block(block: int | None) -> None:
    if block is not None and (block < 32 or block % 32):
        raise ValueError(f"block must be a multiple of 32 or None, not {block}.")


def _words(sizes: Sequence[int]) -> int:
    return sum(byte_words(n) for n in sizes)


def _scales(sizes: Sequence[int], block: int | None) -> int:
    return sum(arguments.count_blocks(n, block or n) for n in sizes)
