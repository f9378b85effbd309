"""Takes one worker's share of the data, so that all workers have equally many elements.

All workers read the same dataset or arrays.  Worker `rank` of `size` trains on the elements (rows)
rank, rank + size, …; the remainder that is too small for all workers is left out.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_taken = False
_rows_of_shares: set[int] = set()  # how many rows the shares of arrays have


def taken() -> bool:
    """Whether this process, one of several, has taken its share of some data."""
    return _taken


def is_share(array: Any) -> bool:
    """Whether this array has as many rows as a share that this process, one of several, has taken.

    The share may have been changed since, such as normalised.
    """
    return len(array) in _rows_of_shares


def share(data: Any, rank: int, size: int, drop: bool) -> Any:
    """This worker's share; with `drop` a dataset of unknown length is dealt out in rounds.

    A single worker gets the data unchanged, after the same checks.
    """
    global _taken
    mine = _share(data, rank, size, drop)
    if size == 1:
        return data
    _taken = True
    if not isinstance(mine, tf.data.Dataset):
        _rows_of_shares.add(int(tf.nest.flatten(mine)[0].shape[0]))
    return mine


def _share(data: Any, rank: int, size: int, drop: bool) -> Any:
    if isinstance(data, tf.data.Dataset):
        return _of_dataset(data, rank, size, drop)
    return _of_arrays(data, rank, size)


def _of_dataset(dataset: tf.data.Dataset, rank: int, size: int, drop: bool) -> tf.data.Dataset:
    count = int(dataset.cardinality())
    if count == tf.data.UNKNOWN_CARDINALITY:
        if drop:
            return _in_rounds(dataset, rank, size)
        raise ValueError(
            "shard() must know how many elements the dataset has, to give each worker equally "
            'many: give shard(dataset, uneven="drop"), which deals them out in rounds, or say it '
            "with dataset.apply(tf.data.experimental.assert_cardinality(n))."
        )
    if count != tf.data.INFINITE_CARDINALITY:
        if count < size:
            raise ValueError(
                f"The dataset's cardinality, {count}, is less than the number of workers, {size}."
            )
        dataset = dataset.take(count - count % size)
    return dataset.shard(size, rank)


def _in_rounds(dataset: tf.data.Dataset, rank: int, size: int) -> tf.data.Dataset:
    """Deals out whole rounds of `size` elements; all workers see the same end and stop there."""

    def mine(*parts: Any) -> tf.data.Dataset:
        whole = parts[0] if len(parts) == 1 else parts
        one = tf.data.Dataset.zip(whole) if isinstance(whole, (tuple, dict)) else whole
        return one.skip(rank).take(1)

    return dataset.window(size, drop_remainder=True).flat_map(mine)


def _of_arrays(data: Any, rank: int, size: int) -> Any:
    arrays = tf.nest.flatten(data)
    for array in arrays:
        if not hasattr(array, "shape") or not len(array.shape):
            without = " without rows" if hasattr(array, "shape") else ""
            raise TypeError(
                "shard() takes a tf.data.Dataset or arrays (NumPy's, tensors, tuples or dicts of "
                f"them), but got a value of type {type(array).__name__}{without}."
            )
    counts = {int(array.shape[0]) for array in arrays}
    if len(counts) != 1:
        raise ValueError(
            "shard() deals out rows, so all arrays need equally many, but they have "
            f"{', '.join(map(str, sorted(counts))) or 'none'}."
        )
    (count,) = counts
    if count < size:
        raise ValueError(f"There are fewer rows, {count}, than workers, {size}.")
    return tf.nest.map_structure(lambda array: array[: count - count % size][rank::size], data)
