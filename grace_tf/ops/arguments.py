"""What the operations accept; each check raises one sentence saying what is wrong."""

from __future__ import annotations

import tensorflow as tf

from grace_tf.ops.words import packed_words


def tensor(x, dtype: tf.DType, rank: int, name: str) -> tf.Tensor:
    """x as a tensor, which must be of this dtype and rank and of known shape."""
    x = tf.convert_to_tensor(x)
    if x.dtype != dtype:
        raise TypeError(f"{name} must be {dtype.name}, not {x.dtype.name}.")
    if x.shape.rank != rank or not x.shape.is_fully_defined():
        raise ValueError(f"{name} must have rank {rank} and a static shape, not {x.shape}.")
    return x


def floats(x) -> tf.Tensor:
    x = tensor(x, tf.float32, 1, "x")
    if x.shape[0] == 0:
        raise ValueError("x must have at least one element.")
    return x


def check_length(n: int) -> None:
    if not 1 <= n < 2**31:
        raise ValueError(f"n must be from 1 to 2^31 - 1, not {n}.")


def check_key(key) -> None:
    if not 0 <= key.variable < 2**24:
        raise ValueError(f"The key's variable must be from 0 to 2^24 - 1, not {key.variable}.")
    if not 0 <= key.draw < 256:
        raise ValueError(f"The key's draw must be from 0 to 255, not {key.draw}.")


def check_codes(levels: int, bits: int) -> None:
    if not 2 <= bits <= 16:
        raise ValueError(f"bits must be from 2 to 16, not {bits}.")
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
