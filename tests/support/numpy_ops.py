"""The operations once more, in NumPy and for the eye: the third witness of what they mean."""

import numpy as np

SMALLEST_SCALE = np.float32(2.0**-110)


def bits_of(x):
    return np.asarray(x, np.float32).view(np.uint32)


def magnitude(x):
    return bits_of(x) & np.uint32(0x7FFFFFFF)


def flush(x):
    return np.where(magnitude(x) < 0x00800000, np.float32(0), x).astype(np.float32)


def pack(codes, bits):
    """Word p of a group of 32 holds bit p of the 32 codes, that of element i in bit i."""
    groups = -(-len(codes) // 32)
    padded = np.zeros(32 * groups, np.uint64)
    padded[: len(codes)] = codes
    words = np.zeros([groups, bits], np.uint64)
    for group in range(groups):
        for i, code in enumerate(padded[32 * group : 32 * group + 32]):
            for p in range(bits):
                words[group, p] |= (code >> np.uint64(p) & np.uint64(1)) << np.uint64(i)
    return words.astype(np.uint32).reshape(-1).view(np.int32)


def unpack(words, n, bits):
    words = words.view(np.uint32).reshape(-1, bits)
    planes = words[:, :, np.newaxis] >> np.arange(32, dtype=np.uint32) & 1
    codes = (planes.astype(np.int64) << np.arange(bits)[:, np.newaxis]).sum(axis=1)
    return codes.reshape(-1)[:n]


def philox(key, counter):
    """Philox4x32-10 of one counter of four words under a key of two."""
    k0, k1 = (int(k) for k in key)
    a, b, c, d = (int(w) for w in counter)
    for _ in range(10):
        m0, m1 = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (m1 >> 32) ^ b ^ k0, m1 & 0xFFFFFFFF, (m0 >> 32) ^ d ^ k1, m0 & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d


def random_words(n, key):
    high = (int(key.step) & 0xFFFFFFFF, key.variable << 8 | key.draw)
    own = (int(key.seed) & 0xFFFFFFFF, int(key.worker) & 0xFFFFFFFF)
    blocks = [philox(own, (i, 0, *high)) for i in range(-(-n // 4))]
    return np.array(blocks, np.uint32).reshape(-1)[:n].view(np.int32)


def uniform(n, key):
    return (random_words(n, key).view(np.uint32) >> 8).astype(np.float32) * np.float32(2.0**-24)


def coarse_words(n, key):
    """A word for two elements, 16 apart: 16 random bits and the middle of what is below them."""
    words = random_words(16 * (-(-n // 32)), key).view(np.uint32).reshape(-1, 16)
    halves = np.stack([words << np.uint32(16), words & np.uint32(0xFFFF0000)], 1)
    return halves.reshape(-1)[:n] | np.uint32(0x8000)


def coarse_uniform(n, key):
    return (coarse_words(n, key) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def pack_signs(x):
    bits = bits_of(x)
    return pack((bits <= 0x7F800000) | (bits == 0x80000000), 1)


def unpack_signs(words, n):
    return (2 * unpack(words, n, 1) - 1).astype(np.float32)


def vote_signs(words, n):
    return np.sign(sum(2 * unpack(own, n, 1) - 1 for own in words)).astype(np.float32)


def block_scales(x, block, norm):
    scales = []
    for start in range(0, len(x), block):
        own = x[start : start + block]
        if norm == "max":
            scale = magnitude(own).max().view(np.float32)
        else:
            s = flush(own).astype(np.float64) ** 2
            s = np.pad(s, (0, (1 << (len(s) - 1).bit_length()) - len(s)))
            while len(s) > 1:
                s = s[0::2] + s[1::2]
            scale = np.sqrt(s[0])
        scales.append(0.0 if scale < SMALLEST_SCALE else scale)
    return np.array(scales).astype(np.float32)


def quantize(x, scales, levels, bits, block, key):
    n, s = len(x), np.float32(levels)
    zero = scales < SMALLEST_SCALE
    inverse = np.where(zero, np.float32(0), flush(s / np.where(zero, np.float32(1), scales)))
    a = flush(np.abs(x)) * inverse[np.arange(n) // block]
    draw = coarse_uniform if levels <= 127 else uniform
    q = np.rint(a) if key is None else np.floor(a + draw(n, key))
    q = np.minimum(q, s).astype(np.int64)
    return pack(np.where(np.signbit(x), levels - q, levels + q), bits)


def dequantize(words, scales, n, levels, bits, block):
    unit = np.where(scales < SMALLEST_SCALE, np.float32(0), scales / np.float32(levels))
    code = np.minimum(unpack(words, n, bits), 2 * levels)
    return (code - levels).astype(np.float32) * unit[np.arange(n) // block]


def dequantize_sum(words, scales, n, levels, bits, block):
    total = np.zeros(n, np.float32)
    for own_words, own_scales in zip(words, scales):
        total = flush(total + dequantize(own_words, own_scales, n, levels, bits, block))
    return total


def top_k(x, k):
    order = np.argsort(-magnitude(x).astype(np.int64), kind="stable")
    indices = np.sort(order[:k]).astype(np.int32)
    return x[indices], indices


def scatter_sum(values, indices, counts, n):
    total = np.zeros(n, np.float32)
    for w in range(len(values)):
        for i in range(values.shape[1] if counts is None else min(counts[w], values.shape[1])):
            at = indices[w, i]
            total[at] = flush(total[at] + flush(values[w, i]))
    return total


def sum_by_halves(x):
    x = np.pad(x, (0, (1 << (len(x) - 1).bit_length()) - len(x)))
    while len(x) > 1:
        x = x[: len(x) // 2] + x[len(x) // 2 :]
    return x[0]


def product(p, q):
    """P Qᵀ, added in the order of the columns."""
    total = np.outer(p[:, 0], q[:, 0])
    for k in range(1, p.shape[1]):
        total = total + np.outer(p[:, k], q[:, k])
    return total


def rest(basis, w):
    """w less what it has of the basis' columns, taken out twice, and its square."""
    for _ in range(2):
        cosines = [sum_by_halves(column * w) for column in basis.T]
        w = w - product(basis, np.array([cosines]))[:, 0]
    return w, sum_by_halves(w * w)


def orthonormal(p):
    basis = np.zeros_like(p)
    largest = np.abs(p).max(0)
    for k, column in enumerate(flush(p / np.where(largest == 0, np.float32(1), largest)).T):
        w, square = rest(basis, column)
        if square <= np.float32(2.0**-32) * sum_by_halves(column * column):
            norms = np.array([sum_in_order(row * row) for row in basis])
            w = np.zeros_like(column)
            w[np.argmin(norms)] = 1
            w, square = rest(basis, w)
        basis[:, k] = w / np.sqrt(square)
    return basis


def sum_in_order(x):
    total = x[0]
    for term in x[1:]:
        total = total + term
    return total
