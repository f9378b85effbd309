"""What the operations of `grace_tf.ops.low_rank` mean, in plain TensorFlow.

What workers must compute alike, the basis, the products P Qᵀ and the unit columns, has one order of
operations, which the native library and `tests/support/numpy_ops.py` repeat bit for bit.  The
products with a worker's own gradient, `project` and `reproject`, are TensorFlow's matrix products:
only their sum over the workers is seen by anyone else, so their last bits may differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import tensorflow as tf

from grace_tf.ops.reference.arithmetic import (
    MAGNITUDE,
    bits_of,
    flush,
    pad_to,
    quotient,
    sum_by_halves,
    to_power_of_two,
)

Tensors = Sequence[tf.Tensor]

# The share of a column's square that rounding may leave of a column which depends on those before
# it. A remainder is exact to a few times 2^-24 of its column for each halving and each column; at
# 2^-16 of the column it has some eight bits left, and a second removal makes it orthogonal.
_NEGLIGIBLE = 2.0**-32


def _joined(parts: Tensors) -> tf.Tensor:
    parts = [tf.reshape(part, [-1]) for part in parts]
    return tf.concat(parts, 0) if parts else tf.zeros([0])


def _factors(flat: tf.Tensor, sizes, axis: int) -> list[tf.Tensor]:
    """The factors [rows, rank] (axis 0) or [columns, rank] (axis 1) that lie end to end in flat."""
    parts = tf.split(flat, [size[axis] * size[2] for size in sizes])
    return [tf.reshape(part, [size[axis], size[2]]) for part, size in zip(parts, sizes)]


def project(accs: Tensors, qs: Tensors, sizes) -> tuple[tf.Tensor, tf.Tensor]:
    qs = iter(qs)
    ps, dense = [], []
    for acc, (rows, columns, rank) in zip(accs, sizes):
        if rank:
            ps.append(tf.reshape(acc, [rows, columns]) @ next(qs))
        else:
            dense.append(acc)
    return _joined(ps), _joined(dense)


def reproject(accs: Tensors, basis: tf.Tensor, sizes) -> tf.Tensor:
    ps = _factors(basis, sizes, 0)
    return _joined(
        [
            tf.matmul(tf.reshape(acc, size[:2]), p, transpose_a=True)
            for acc, p, size in zip(accs, ps, sizes)
            if size[2]
        ]
    )


def expand(basis: tf.Tensor, q: tf.Tensor, dense: tf.Tensor, sizes, shapes) -> list[tf.Tensor]:
    ps, qs = _factors(basis, sizes, 0), _factors(q, sizes, 1)
    rest = iter(
        tf.split(dense, [rows for rows, _, rank in sizes if not rank]) if dense.shape[0] else ()
    )
    return [
        tf.reshape(_product(p, q) if size[2] else next(rest), shape)
        for p, q, size, shape in zip(ps, qs, sizes, shapes)
    ]


def _product(p: tf.Tensor, q: tf.Tensor) -> tf.Tensor:
    rank = p.shape[1]
    return _sum_of_products(tf.split(p, rank, 1), tf.split(tf.transpose(-q), rank, 0))


def _sum_of_products(xs: Tensors, negative: Tensors) -> tf.Tensor:
    """x0 y0 + x1 y1 + ... from the left, given xs and -ys.

    Graph optimisers add up a chain of additions in an order of their own, but not one of
    subtractions, which give the same bits.
    """
    total = -(xs[0] * negative[0])
    for x, y in zip(xs[1:], negative[1:]):
        total = total - x * y
    return total


def unit_columns(x: tf.Tensor) -> tf.Tensor:
    """Each column of x [..., n, rank] divided by its largest magnitude, which makes that 1.

    Denormals count as zero, and columns of zeros stay.
    """
    magnitudes = tf.reduce_max(bits_of(x) & MAGNITUDE, axis=-2, keepdims=True)
    largest = flush(tf.bitcast(magnitudes, tf.float32))
    return tf.where(largest == 0, 0.0, flush(quotient(flush(x), largest)))


def unit_columns_list(q: tf.Tensor, sizes) -> list[tf.Tensor]:
    return [unit_columns(each) for each in _factors(q, sizes, 1) if each.shape[1]]


def orthonormal(p: tf.Tensor, sizes) -> tf.Tensor:
    ps = _factors(p, sizes, 0)
    alike = defaultdict(list)
    for i, (rows, _, rank) in enumerate(sizes):
        if rank:
            alike[_power_of_two(rows), rank].append(i)
    bases = {}
    for (padded, _), chosen in alike.items():
        stacked = tf.stack([pad_to(unit_columns(ps[i]), padded) for i in chosen])
        rows = tf.constant([sizes[i][0] for i in chosen], tf.int32)
        for i, basis in zip(chosen, tf.unstack(_basis(stacked, rows))):
            bases[i] = basis[: sizes[i][0]]
    return _joined([bases[i] for i in sorted(bases)])


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _rest(basis: tf.Tensor, w: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """w [matrices, n] less what it has of the basis, taken out twice, and its square [matrices]."""
    for _ in range(2):
        cosines = sum_by_halves(basis * w[:, :, tf.newaxis])
        cosines = tf.unstack(-cosines[:, tf.newaxis], axis=2)
        w = w - _sum_of_products(tf.unstack(basis, axis=2), cosines)
    return w, sum_by_halves(w * w)


def _basis(columns: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Orthonormal columns that span those given, [matrices, n, rank], by classical Gram-Schmidt.

    Twice is enough: what is left of a column is orthogonal to rounding after two removals. Of a
    column that depends on those before it nothing but rounding is left. Such a column is replaced
    by the unit vector of the row in which the basis so far is smallest, or of the first of several
    such rows: most of this vector is left after the removals. So the basis always has all its
    columns, and the next step starts from all of them.
    Columns that do not exist yet count as zeros. Matrix i has rows[i] rows, then zeros.
    """
    matrices, n, rank = columns.shape
    places = tf.range(n)

    def add(k, basis):
        column = tf.gather(columns, k, axis=2)
        w, square = _rest(basis, column)
        norms = _sum_of_products(tf.unstack(basis, axis=2), tf.unstack(-basis, axis=2))
        norms = tf.where(places < rows[:, tf.newaxis], norms, float("inf"))
        least = norms == tf.reduce_min(norms, axis=1, keepdims=True)
        first = tf.reduce_min(tf.where(least, places, n), axis=1, keepdims=True)
        other, other_square = _rest(basis, tf.cast(places == first, tf.float32))
        depends = square <= _NEGLIGIBLE * sum_by_halves(column * column)
        w = tf.where(depends[:, tf.newaxis], other, w)
        square = tf.where(depends, other_square, square)
        norm = tf.cast(tf.sqrt(tf.cast(square, tf.float64)), tf.float32)
        w = quotient(w, norm[:, tf.newaxis])
        return k + 1, tf.where(tf.range(rank) == k, w[:, :, tf.newaxis], basis)

    _, basis = tf.while_loop(
        lambda k, basis: k < rank,
        add,
        (tf.constant(0), tf.zeros([matrices, n, rank])),
        maximum_iterations=rank,
    )
    return basis


def alternate(accs: Tensors, left: tf.Tensor, right: tf.Tensor, sizes) -> tuple[tf.Tensor, ...]:
    ps, dense = project(accs, [b for b in _factors(right, sizes, 1) if b.shape[1]], sizes)
    return ps, reproject(accs, left, sizes), dense


def remove(w: tf.Tensor, basis: tf.Tensor, sizes) -> tf.Tensor:
    """w - B (Bᵀ w) of each matrix; the sums of Bᵀ w are by halves, as those of `orthonormal`."""
    rests = []
    for own, b, (rows, _, rank) in zip(_factors(w, sizes, 0), _factors(basis, sizes, 0), sizes):
        if rank:
            columns, b = to_power_of_two(own[tf.newaxis]), to_power_of_two(b[tf.newaxis])
            cosines = sum_by_halves(b[:, :, :, tf.newaxis] * columns[:, :, tf.newaxis])
            share = zip(tf.split(b, rank, 2), tf.unstack(-cosines[:, :, tf.newaxis], axis=1))
            rests.append((columns - _sum_of_products(*zip(*share)))[0, :rows])
    return _joined(rests)


def bases(factors: Tensors, sizes, transposed) -> tuple[tf.Tensor, tf.Tensor]:
    pairs = zip(factors, (size for size in sizes if size[2]))
    parts = [tf.split(f, [rows * rank, columns * rank]) for f, (rows, columns, rank) in pairs]
    left, right = (_joined([pair[i] for pair in parts]) for i in (0, 1))
    return orthonormal(left, sizes), orthonormal(right, transposed)


def turned(p, q, left, right, step, sizes, transposed) -> list[tf.Tensor]:
    p_first = tf.equal(step % 2, 0)
    ps = tf.where(p_first, p, remove(p, left, sizes))
    qs = tf.where(p_first, remove(q, right, transposed), q)
    pairs = zip(_factors(ps, sizes, 0), _factors(qs, sizes, 1), sizes)
    return [_joined([own, other]) for own, other, size in pairs if size[2]]


def expand_sides(bases, rest, q, dense, sizes, shapes) -> list[tf.Tensor]:
    left, right = bases
    doubled = [(rows, columns, 2 * rank) for rows, columns, rank in sizes]
    p = _side_by_side(rest, left, sizes, 0)
    return expand(p, _side_by_side(right, q, sizes, 1), dense, doubled, shapes)


def _side_by_side(a: tf.Tensor, b: tf.Tensor, sizes, axis: int) -> tf.Tensor:
    pairs = zip(_factors(a, sizes, axis), _factors(b, sizes, axis))
    return _joined([tf.concat(pair, 1) for pair in pairs])
