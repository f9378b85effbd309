"""Elements in classes by their size once more, in NumPy and for the eye."""

import numpy as np
from numpy_ops import pack


def edges(b, s):
    """From where on an element is a byte, a half, a float; in float64."""
    return 2.0 ** (s - b), 2.0 ** (s + min(0, 7 - b)), 2.0 ** (s + min(0, 15 - b))


def sizes(x):
    """|x|, denormals as zero."""
    size = np.abs(x.astype(np.float64))
    return np.where(size < 2.0**-126, 0, size)


def shift(x, b, room):
    for s in range(400):
        _, half, whole = edges(b, s)
        wholes = (sizes(x) >= whole).sum()
        if (sizes(x) >= half).sum() - wholes <= room.halves and wholes <= room.wholes:
            return s
    raise AssertionError


def sent(x, b, room, step):
    """(what is decoded in float64, classes, shift, wanted counts)."""
    s = shift(x, b, room)
    size, (byte, half, whole) = sizes(x), edges(b, s)
    tags = (size >= byte).astype(int) + (size >= half) + (size >= whole)
    wanted = [int((tags == i).sum()) for i in (1, 2, 3)]
    bytes_ = np.flatnonzero(tags == 1)
    if len(bytes_) > room.bytes:
        begin = (step % 2**32) * room.bytes % len(bytes_)
        chosen = (np.arange(room.bytes) + begin) % len(bytes_)
        tags[np.delete(bytes_, chosen)] = 0
    cut = [0 * size, np.floor(size / (half / 2**7)) * (half / 2**7)]
    cut += [np.floor(size / (whole / 2**15)) * (whole / 2**15), size]
    value = np.copysign(np.choose(tags, cut), x)
    return np.where(tags == 0, 0, value), tags, s, wanted


def padded(numbers, length, dtype):
    out = np.zeros(length, dtype)
    out[: len(numbers)] = numbers
    return out


def payload(x, b, room, step):
    """The parts, in order of `grace_tf.ops.size_classes.Classes`."""
    value, tags, s, wanted = sent(x, b, room, step)
    _, half, whole = edges(b, s)
    signs = np.signbit(x)
    bytes_ = (np.abs(value) / (half / 2**7) + 0x80 * signs)[tags == 1]
    halves = (np.abs(value) / (whole / 2**15) + 0x8000 * signs)[tags == 2]
    return (
        pack(tags, 2),
        padded(bytes_, -(-room.bytes // 4) * 4, np.uint8).view(np.int32),
        padded(halves, -(-room.halves // 2) * 2, np.uint16).view(np.int32),
        padded(x[tags == 3], room.wholes, np.float32),
        np.array([s, *wanted], np.int32),
    )
