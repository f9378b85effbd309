"""Operations on whole lists of variables, each one pass over memory. Native only.

Each gives the bits of a stated composition of the operations of `grace_tf.ops` and TensorFlow's own
arithmetic, which is what to use where `runs_here` is false. The payloads of a list's tensors lie
one behind the other, in order of the list, each as the single operation gives it: groups of words
and blocks of scales start anew at every tensor. Tensors are float32 of any static shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from grace_tf.ops import choice
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.arguments import ListKey, Strata
from grace_tf.ops.backend.words import packed_words


class Quantized(NamedTuple):
    """What `quantize_list` gives."""

    words: tf.Tensor
    """int32 [the sum of packed_words(n_i, bits)]."""
    scales: tf.Tensor
    """float32 [the sum of the tensors' numbers of blocks]."""
    kept: list[tf.Tensor] | None
    """What the codes fail to carry, each of its tensor's shape; None without residuals."""
    finite: tf.Tensor
    """A bool scalar: whether everything that was encoded is finite."""


def runs_here(xs: Sequence[tf.Tensor]) -> bool:
    """Whether these operations would run on these tensors.

    They do where the library is there, the tensors are on the CPU, or on GPUs and the CUDA kernels
    run there, nothing is compiled by XLA, and `ops.using` does not say otherwise.
    """
    return choice.lists_run(xs)


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
        kept_i = acc_i - dequantize(words_i, scales_i, n_i, levels, bits, block)

    key None rounds to the nearest; `grace_tf.ops.quantization` says what "minmax" and `Strata`
    mean. Raises ValueError and TypeError as those do.
    """
    xs = arguments.float_list(xs, "xs")
    residuals = arguments.residual_list(residuals, xs)
    arguments.check_codes(levels, bits, norm)
    arguments.check_random(key, len(xs))
    sizes = _sizes([x.shape for x in xs])
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
        _of_shapes(result.kept, [x.shape for x in xs]) if residuals else None,
        _flag(result.finite),
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
    sizes = _sizes(shapes)
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
        **_told(shapes),
    )
    return _of_shapes(totals, shapes), _flag(finite)


def sign_list(xs: Sequence[tf.Tensor], multiplier: float) -> tuple[tf.Tensor, tf.Tensor]:
    """The signs of x_i * multiplier for each x_i of a list, as `pack_signs` gives them.

    There is no product where the multiplier is 1.0. Returns int32 [the sum of packed_words(n_i, 1)]
    and a bool scalar: whether all products are finite.
    """
    xs = arguments.float_list(xs, "xs")
    finite, words = native._ops().grace_sign_list(xs=xs, multiplier=float(np.float32(multiplier)))
    size = sum(packed_words(n, 1) for n in _sizes([x.shape for x in xs]))
    return native._shaped(words, size), _flag(finite)


def vote_list(
    words: tf.Tensor, shapes: Sequence[Sequence[int]], factor: float | tf.Tensor
) -> list[tf.Tensor]:
    """The votes of the workers' signs, `vote_signs(words_i, n_i) * factor` for each i of a list.

    words is int32 [N, n], a row of `sign_list` per worker; factor is a float32 scalar, by which
    every element is multiplied, zeros too. The votes have the given shapes.
    """
    words = arguments.tensor(words, tf.int32, 2, "words")
    arguments.check_size(words, sum(packed_words(n, 1) for n in _sizes(shapes)), "words")
    totals = native._ops().grace_vote_list(
        words=words,
        factor=arguments.factor_of(factor),
        **_told(shapes),
    )
    return _of_shapes(totals, shapes)


def nan_list(shapes: Sequence[Sequence[int]]) -> list[tf.Tensor]:
    """float32 tensors of these shapes, NaN throughout: any vote times NaN, in one node."""
    words = sum(packed_words(n, 1) for n in _sizes(shapes))
    return vote_list(tf.zeros([1, words], tf.int32), shapes, tf.constant(float("nan")))


def nan_unless(xs: Sequence[tf.Tensor], finite: tf.Tensor) -> list[tf.Tensor]:
    """xs where `finite`, a bool scalar, is true, else NaN throughout; in place where that can be.

    In a graph that is everywhere where nothing else holds an x; else an x is copied.
    """
    xs = arguments.float_list(xs, "xs")
    finite = arguments.tensor(finite, tf.bool, 0, "finite")
    return _of_shapes(
        native._ops().grace_nan_unless_list(xs=xs, finite=finite), [x.shape for x in xs]
    )


def made_here(x: tf.Tensor) -> bool:
    """Whether an operation of the native library has made x, in a graph."""
    return not tf.executing_eagerly() and x.op.type.startswith("Grace>")


def _sizes(shapes: Sequence[Sequence[int]]) -> list[int]:
    return [math.prod(shape) for shape in shapes]


def _scales_size(sizes: Sequence[int], block: int | None, norm: str) -> int:
    blocks = sum(min(n, 1) if block is None else arguments.count_blocks(n, block) for n in sizes)
    return (2 if norm == "minmax" else 1) * blocks


def _told(shapes: Sequence[Sequence[int]]) -> dict:
    """The attributes that tell an operation the shapes of its outputs."""
    return {
        "N": len(shapes),
        "ranks": [len(shape) for shape in shapes],
        "dims": [size for shape in shapes for size in shape],
    }


def _of_shapes(xs: Sequence[tf.Tensor], shapes: Sequence[Sequence[int]]) -> list[tf.Tensor]:
    for x, shape in zip(xs, shapes):
        x.set_shape(shape)
    return list(xs)


def _flag(x: tf.Tensor) -> tf.Tensor:
    x.set_shape([])
    return x
