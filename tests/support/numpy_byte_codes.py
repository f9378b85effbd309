"""The codes of eight bits once more, in NumPy and for the eye."""

import numpy as np
from numpy_ops import SMALLEST_SCALE, bits_of, block_scales, coarse_words, flush, magnitude


def tree_numbers():
    """From the bits of each code: z zeros, a one, a fraction of k bits.  Code 0 has no one: 0."""
    numbers = [np.float32(0)]
    for code in range(1, 128):
        bits = f"{code:07b}"
        z = bits.index("1")
        k = 6 - z
        f = int(bits[z + 1 :] or "0", 2)
        # 10^-z (1/10 + 9/10 (f + 1)/2^k) as a whole number of units.
        unit = np.float32(1 / (2**k * 10 ** (z + 1)))
        numbers.append(np.float32(2**k + 9 * (f + 1)) * unit)
    return np.array(numbers, np.float32)


def tree_code(x, scale):
    """The code of one float32: the rounded minimum of the lines through the numbers."""
    f32 = np.float32
    if magnitude(x) < 0x00800000 or scale < SMALLEST_SCALE:
        a = f32(0)
    else:
        a = f32(np.abs(x)) * (f32(4) / f32(scale))
    place = a * f32(0.25e6)
    for k in range(1, 7):
        place = min(place, a * f32(2**k * 10 ** (7 - k) / 36) + f32((8 * 2**k - 9) / 9))
    return int(np.rint(min(place, f32(127)))) | (0x80 if np.signbit(x) else 0)


def pack(codes):
    return np.pad(np.asarray(codes, np.uint8), (0, -len(codes) % 4)).view("<i4")


def encode_tree(x, block):
    scales = block_scales(x, block, "max")
    return pack([tree_code(v, scales[i // block]) for i, v in enumerate(x)]), scales


def tree_values(codes, scales, block):
    scales = np.where(scales < SMALLEST_SCALE, np.float32(0), scales)
    each = flush(tree_numbers()[codes & 0x7F] * scales[np.arange(len(codes)) // block])
    return np.float32(0) + np.where(codes & 0x80, -each, each)


def encode_powers(x, key):
    random = coarse_words(len(x), key) >> 9
    exponents = (magnitude(x).astype(np.int64) + random) >> 23
    return pack(np.clip(exponents - 32, 0, 127) | (bits_of(x) >> 31 << 7))


def power_values(codes):
    c = (codes & 0x7F).astype(np.int64)
    each = np.where(c > 0, 2.0 ** (c - 95), 0).astype(np.float32)
    return np.float32(0) + np.where(codes & 0x80, -each, each)


def summed(rows, factor):
    """The sum of what workers sent, times factor."""
    total = np.float32(0)
    for values in rows:
        total = flush(total + values)
    return flush(total * np.float32(factor))
