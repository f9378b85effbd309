"""Lists of tensors stored in fewer bits between steps: bfloat16, or 8 bits with a scale a block.

Both round at random, so that what comes back is right in expectation.  Tensors are float32; what
is not finite has no meaning here.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from grace_tf.ops import dispatch
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.arguments import ListKey
from grace_tf.ops.backend.outputs import dims_of, shaped_like
from grace_tf.ops.reference import narrow_storage as reference


def to_halves_list(xs: Sequence[tf.Tensor], key: ListKey) -> list[tf.Tensor]:
    """The bits of each x as bfloat16, uint16 of its shape, rounded at random without bias.

    With h the 16 random bits an element of the key's stream (`grace_tf.ops.quantize` says which),
    element i is the upper half of bits(x_i) + h_i, or of bits(x_i) where that would be infinite.
    """
    xs = _checked(xs, key)
    if not dispatch.runs_here(xs):
        return [reference.to_halves(x, key.stream(i)) for i, x in enumerate(xs)]
    halves = native._ops().grace_to_halves_list(xs=xs, **native.streams(key))
    return shaped_like(halves, [x.shape for x in xs])


def from_halves_list(stored: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """float32 tensors from what `to_halves_list` gave, exactly."""
    stored = [arguments.tensor(x, tf.uint16, x.shape.rank, "stored") for x in stored]
    if not dispatch.runs_here(stored):
        return [reference.from_halves(x) for x in stored]
    xs = native._ops().grace_from_halves_list(halves=stored)
    return shaped_like(xs, [x.shape for x in stored])


def to_bytes_list(xs: Sequence[tf.Tensor], key: ListKey) -> list[tf.Tensor]:
    """Each x as int8 [m, 4], the bytes of m words: its codes, then the bits of its scales.

    They are those of `ops.block_scales(x, 256, "max")` and of `ops.quantize` with 127 levels, 8
    bits and the key's stream for the tensor: packed_words(n, 8) words of codes, ⌈n/256⌉ of scales.
    """
    xs = _checked(xs, key)
    if not dispatch.runs_here(xs):
        return [reference.to_bytes(x, key.stream(i)) for i, x in enumerate(xs)]
    stored = native._ops().grace_to_bytes_list(xs=xs, **native.streams(key))
    return shaped_like(stored, [reference.shape_of_bytes(x.shape) for x in xs])


def from_bytes_list(stored: Sequence[tf.Tensor], shapes: Sequence) -> list[tf.Tensor]:
    """float32 tensors of these shapes from what `to_bytes_list` gave."""
    shapes = arguments.shape_list(shapes)
    stored = [arguments.tensor(x, tf.int8, 2, "stored") for x in stored]
    if [x.shape for x in stored] != [reference.shape_of_bytes(shape) for shape in shapes]:
        raise ValueError("What is stored does not belong to tensors of these shapes.")
    if not dispatch.runs_here(stored):
        return [reference.from_bytes(x, shape) for x, shape in zip(stored, shapes)]
    xs = native._ops().grace_from_bytes_list(stored=stored, **dims_of(shapes))
    return shaped_like(xs, shapes)


def _checked(xs: Sequence[tf.Tensor], key: ListKey) -> list[tf.Tensor]:
    xs = arguments.float_list(xs, "xs")
    arguments.check_list_key(key, len(xs))
    return xs
