"""Quantile buckets once more, in NumPy and for the eye."""

import numpy as np


def numbers(x):
    """Which elements are negative, and the bits of magnitudes; zeros and denormals have 0."""
    bits = np.asarray(x, np.float32).ravel().view(np.uint32)
    magnitudes = np.minimum(bits & 0x7FFFFFFF, 0x7F7FFFFF).astype(np.int64)
    magnitudes[magnitudes < 0x00800000] = 0
    return (bits >> 31 == 1) & (magnitudes > 0), magnitudes


def ids_of(x, q, span=1):
    """The bucket of each element."""
    negative, magnitudes = numbers(x)
    positive = ~negative & (magnitudes > 0)
    bins, zeros = magnitudes >> 16, int((magnitudes == 0).any())
    n, p = int(negative.sum()), int(positive.sum())
    below = 0
    if n:
        runs = int(np.floor(q // span * n / (n + p) + 0.5))
        most = q // span - -(-(zeros + (p > 0)) // span)
        below = span * min(max(runs, 1), most)
    ids = np.full(bins.size, below)
    for side, start, size in ((negative, 0, below), (positive, below + zeros, q - below - zeros)):
        lesser = np.searchsorted(np.sort(bins[side]), bins[side])
        ids[side] = start + lesser * size // max(side.sum(), 1)
    return ids.astype(np.int32)


def mean_of(x, by_bins=True):
    """The mean of one bucket, in whole numbers; bins are truncated together, or each element."""
    negative, magnitudes = numbers(x)
    exponents = magnitudes >> 23
    largest, total = int(exponents.max()), 0
    keys = magnitudes >> 16 if by_bins else np.arange(magnitudes.size)
    for key in np.unique(keys):
        own = (keys == key) & (magnitudes > 0)
        if own.any():
            sum_of_bin = int((magnitudes[own] & 0x7FFFFF | 0x800000).sum())
            total += sum_of_bin * 128 >> largest - int(exponents[own][0])
    mean = np.float64(total) / np.float64(magnitudes.size)
    return np.float32(np.ldexp(-mean if negative.any() else mean, largest - 157))


def encode(x, q, span=1):
    """(ids, means)."""
    flat, ids, means = np.asarray(x, np.float32).ravel(), ids_of(x, q, span), np.zeros(q)
    for i in np.unique(ids):
        means[i] = mean_of(flat[ids == i])
    return ids, means.astype(np.float32)


def packed(ids, bits):
    """Bit planes: bit j of word p of a group of 32 is bit p of the group's id j."""
    groups = np.zeros([-(-ids.size // 32), 32], np.int64)
    groups.flat[: ids.size] = ids
    planes = groups[:, None] >> np.arange(bits)[:, None] & 1
    words = (planes << np.arange(32)).sum(-1).astype(np.uint32)
    return words.ravel().view(np.int32)
