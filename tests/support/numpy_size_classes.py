"""Elements in classes by their size once more, in NumPy and for the eye."""

import numpy as np
from numpy_ops import pack


def sizes(x):
    """|x|, denormals as zero."""
    size = np.abs(x.astype(np.float64))
    return np.where(size < 2.0**-126, 0, size)


def choice(x, bound, room):
    """(the least size, the unit, how many elements of half the least size on are sent)."""
    size = sizes(x)
    exponents = np.floor(np.log2(size[size > 0])).astype(int)
    origin = next(o for o in range(-126, 130) if (exponents >= o).sum() <= room.outliers)
    lowest = max(-126, origin - bound)
    best = (np.inf,)
    for least in range(lowest, max(exponents, default=-127) + 2):
        of = {e: int((exponents == e).sum()) for e in range(max(-126, least - 25), least)}
        lost = sum(count * 2**20 // 4 ** (least - e) for e, count in of.items())
        for unit in range(least, least - 16, -1):
            if not -126 <= unit <= 126:
                continue
            wholes = int((exponents >= unit + 15).sum())
            halves = int((exponents >= max(least, unit + 7)).sum()) - wholes
            bytes_ = int((exponents >= least).sum()) - wholes - halves
            left = 4 * (room.words - wholes - -(-halves // 2)) - bytes_
            if left < 0:
                continue
            more = 0
            if least - 7 <= unit < least and least > lowest:
                more = min(left, of[least - 1])
            cut = (bytes_ + more + halves) * 2**20 // 4 ** (least - unit)
            error = (7 * (lost - more * 2**18) + cut) * 4.0**least
            if error < best[0]:
                best = error, 2.0**least, 2.0**unit, more
    return best[1:]


def sent(x, bound, room, step):
    """(what is decoded in float64, classes, the unit)."""
    least, unit, more = choice(x, bound, room)
    size = sizes(x)
    tags = sum((size >= edge).astype(int) for edge in (least, max(least, unit * 2**7)))
    tags += size >= unit * 2**15
    below = np.flatnonzero((size >= least / 2) & (size < least) & (size > 0))
    if more:
        begin = (step % 2**32) * more % len(below)
        tags[below[(np.arange(more) + begin) % len(below)]] = 1
    cut = np.floor(size / unit) * unit
    return np.copysign(np.choose(tags, [0 * size, cut, cut, size]), x), tags, unit


def payload(x, bound, room, step):
    """The parts, in order of `grace_tf.ops.size_classes.Classes`."""
    value, tags, unit = sent(x, bound, room, step)
    level, sign = np.abs(value) / unit, np.signbit(x)
    found = [np.flatnonzero(tags == i) for i in (1, 2, 3)]
    numbers = x[found[2]].astype("<f4").tobytes()
    numbers += (level + 0x8000 * sign)[found[1]].astype("<u2").tobytes()
    numbers += bytes(-len(numbers) % 4)
    numbers += (level + 0x80 * sign)[found[0]].astype("u1").tobytes()
    numbers += bytes(4 * room.words - len(numbers))
    exponent = int(np.log2(unit)) + 127
    return (
        pack(tags, 2),
        np.frombuffer(numbers, np.int32),
        np.array([exponent, *map(len, found)], np.int32),
    )
