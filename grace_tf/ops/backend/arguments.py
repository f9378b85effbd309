"""What the operations accept; each check raises one sentence saying what is wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from grace_tf.ops.backend.words import packed_words

# In the order of the native library's numbers.
NORMS = ("max", "l2", "minmax")


def tensor(x, dtype: tf.DType, rank: int, name: str) -> tf.Tensor:
    """x as a tensor, which must be of this dtype and rank and of known shape."""
    x = tf.convert_to_tensor(x)
    if x.dtype != dtype:
        raise TypeError(f"{name} must be {dtype.name}, not {x.dtype.name}.")
    if x.shape.rank != rank or not x.shape.is_fully_defined():
        raise ValueError(f"{name} must have rank {rank} and a static shape, not {x.shape}.")
    return x


def has_gpus() -> bool:
    """Whether operations may run on a GPU."""
    return bool(tf.config.list_logical_devices("GPU"))


def in_host_memory() -> contextlib.AbstractContextManager:
    """Places scalars that kernels for GPUs read in the host's memory: made there, none is copied
    from a GPU."""
    return tf.device("/CPU:0") if has_gpus() else contextlib.nullcontext()


def factor_of(factor: float | tf.Tensor) -> tf.Tensor:
    """A factor, a number or a float32 scalar tensor, as a tensor."""
    if isinstance(factor, (int, float)):
        with in_host_memory():
            return tf.constant(factor, tf.float32)
    return tensor(factor, tf.float32, 0, "factor")


def floats(x) -> tf.Tensor:
    x = tensor(x, tf.float32, 1, "x")
    if x.shape[0] == 0:
        raise ValueError("x must have at least one element.")
    return x


def check_length(n: int) -> None:
    if not 1 <= n < 2**31:
        raise ValueError(f"n must be from 1 to 2^31 - 1, not {n}.")


def check_key(key) -> None:
    check_variable(key.variable)
    check_draw(key.draw)


def check_variable(variable: int) -> None:
    if not 0 <= variable < 2**24:
        raise ValueError(f"The key's variable must be from 0 to 2^24 - 1, not {variable}.")


def check_draw(draw: int) -> None:
    if not 0 <= draw < 256:
        raise ValueError(f"The key's draw must be from 0 to 255, not {draw}.")


class Key(NamedTuple):
    """Names one stream of random words; equal keys give equal words on every machine.

    The stream is Philox4x32-10 under the key words (seed, worker) with the counter words (i / 4
    low, i / 4 high, step, variable << 8 | draw): word i is the (i mod 4)-th of that block.
    """

    seed: int | tf.Tensor
    """Any integer; its low 32 bits count."""
    worker: int | tf.Tensor
    """This worker's number, or 0xFFFFFFFF for streams that all workers share; low 32 bits."""
    step: int | tf.Tensor
    """The number of the training step; low 32 bits."""
    variable: int
    """The ordinal of the variable, 0 to 2^24 - 1."""
    draw: int
    """Which of a variable's draws within one step, 0 to 255."""


class ListKey(NamedTuple):
    """Names the streams of random words of a list of variables, one each; see `Key`.

    Variable i of the list draws from the stream (seed, worker, step, variables[i], draw).
    """

    seed: int | tf.Tensor
    worker: int | tf.Tensor
    step: int | tf.Tensor
    variables: tuple[int, ...]
    draw: int

    def stream(self, i: int, draw: int | None = None) -> Key:
        """The key of variable i, with another draw where one is given."""
        draw = self.draw if draw is None else draw
        return Key(self.seed, self.worker, self.step, self.variables[i], draw)


class Strata(NamedTuple):
    """Names random words of a list of variables that lie evenly apart on the workers.

    Each word is the sum, modulo 2^32, of one that all workers draw alike and of ⌊2^32 p / size⌋, p
    being the worker's place in a permutation of the workers, another one for each variable and
    step. So the words of each worker are uniform.
    """

    key: ListKey
    """Of the streams that all workers draw alike: its worker is 0xFFFFFFFF."""
    order: int
    """The draw, another than the key's, whose first `size` words tell the permutation: p is the
    rank of the worker's word, of equal ones the first being least."""
    worker: int | tf.Tensor
    """This worker's number, which counts modulo `size`."""
    size: int
    """The number of workers."""


def check_random(random: ListKey | Strata | None, tensors: int) -> None:
    if isinstance(random, Strata):
        check_draw(random.order)
        if random.size < 1:
            raise ValueError(f"There must be at least one worker, not {random.size}.")
        random = random.key
    if random is not None:
        check_list_key(random, tensors)


def check_list_key(key: ListKey, tensors: int) -> None:
    if len(key.variables) != tensors:
        raise ValueError(f"The key names {len(key.variables)} variables for {tensors} tensors.")
    for variable in key.variables:
        check_variable(variable)
    check_draw(key.draw)


def check_codes(levels: int, bits: int, norm: str = "max") -> None:
    if not 2 <= bits <= 16:
        raise ValueError(f"bits must be from 2 to 16, not {bits}.")
    if norm not in NORMS:
        raise ValueError(f"There is no norm {norm!r}; there are {', '.join(NORMS)}.")
    if norm == "minmax":
        if levels != 2**bits - 1:
            raise ValueError(f"minmax has 2^{bits} - 1 steps at {bits} bits, not {levels}.")
        return
    most = (2**bits - 1) // 2
    if not 1 <= levels <= most:
        raise ValueError(f"levels must be from 1 to {most} at {bits} bits, not {levels}.")


def check_size(x: tf.Tensor, size: int, name: str) -> None:
    if x.shape[-1] != size:
        raise ValueError(f"{name} must hold {size} values in a row, not {x.shape[-1]}.")


def count_blocks(n: int, block: int) -> int:
    """How many blocks n elements make."""
    if block < 1:
        raise ValueError(f"block must be at least 1, not {block}.")
    return -(-n // block)


def check_quantized(
    words: tf.Tensor, scales: tf.Tensor, n: int, levels: int, bits: int, block: int
) -> None:
    check_length(n)
    check_codes(levels, bits)
    check_size(words, packed_words(n, bits), "words")
    check_size(scales, count_blocks(n, block), "scales")


def float_list(xs, name: str) -> list[tf.Tensor]:
    """xs as tensors, which must be float32, of any static shape, with elements."""
    xs = [tf.convert_to_tensor(x) for x in xs]
    if not xs:
        raise ValueError(f"{name} must have at least one tensor.")
    for x in xs:
        if x.dtype != tf.float32:
            raise TypeError(f"{name} must be float32, not {x.dtype.name}.")
        if not x.shape.is_fully_defined() or not 1 <= x.shape.num_elements() < 2**31:
            raise ValueError(
                f"Each of {name} must have a static shape of 1 to 2^31 - 1 elements, not {x.shape}."
            )
    return xs


def residual_list(residuals, xs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The residuals of xs, none for None."""
    if residuals is None:
        return []
    residuals = float_list(residuals, "residuals")
    if [r.shape for r in residuals] != [x.shape for x in xs]:
        raise ValueError("The residuals must have the shapes of xs.")
    return residuals


def encoder_lists(xs, residuals) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """What an encoder gets: xs, and their residuals or none."""
    xs = float_list(xs, "xs")
    return xs, residual_list(residuals, xs)


def shape_list(shapes) -> list[tf.TensorShape]:
    """Shapes of float32 tensors to be made, all static."""
    shapes = [tf.TensorShape(shape) for shape in shapes]
    if not shapes:
        raise ValueError("There must be at least one shape.")
    for shape in shapes:
        if not shape.is_fully_defined() or not 1 <= shape.num_elements() < 2**31:
            raise ValueError(f"A shape must be static, of 1 to 2^31 - 1 elements, not {shape}.")
    return shapes


def rows(**parts: tuple[tf.Tensor, tf.DType, int]) -> list[tf.Tensor]:
    """Parts of payloads, with a row for each worker: each is given as (part, dtype, row length)."""
    checked: list[tf.Tensor] = []
    first = next(iter(parts))
    for name, (part, dtype, size) in parts.items():
        part = tensor(part, dtype, 2, name)
        check_size(part, size, name)
        if checked and part.shape[0] != checked[0].shape[0]:
            workers = checked[0].shape[0]
            raise ValueError(f"{workers} workers' {first} came with {part.shape[0]} of {name}.")
        checked.append(part)
    return checked


def workers_counts(counts: tf.Tensor | None, workers: int, tensors: int) -> tf.Tensor | None:
    """How many of each worker's entries for each tensor count; None that all do."""
    if counts is None:
        return None
    counts = tensor(counts, tf.int32, 2, "counts")
    if counts.shape != [workers, tensors]:
        raise ValueError(
            f"counts must be {[workers, tensors]}, a number for each worker and variable, not "
            f"{counts.shape}."
        )
    return counts


def check_counts(ks: Sequence[int], shapes: Sequence[tf.TensorShape]) -> None:
    """Each count is from 1 to the number of its tensor's elements."""
    if len(ks) != len(shapes):
        raise ValueError(f"There are {len(ks)} counts for {len(shapes)} tensors.")
    for k, shape in zip(ks, shapes):
        if not 1 <= k <= shape.num_elements():
            raise ValueError(
                f"A count must be from 1 to {shape.num_elements()}, the number of elements of its "
                f"tensor, not {k}."
            )
