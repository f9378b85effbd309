"""Low rank by one warm-started power iteration."""

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_integer
from grace_tf.core.registry import register
from grace_tf.core.rounds import Sum


@register("powersgd", family="low rank", paper="arXiv:1905.13727", examples=("powersgd:rank=1",))
class PowerSGD(Compressor):
    """Sends a rank-r factorisation: P = orth(Σ M Q), Q = Σ Mᵀ P, C(M) = P Qᵀ.

    M is the gradient as a matrix [everything else, last axis] = [a, b], r = min(rank, a, b).  Q
    is kept between steps (warm start); at first it is normal, drawn alike by all workers.  What
    one worker sent is P Pᵀ M, the projection of its own matrix.  A variable whose factors would
    be no smaller than itself, every 1-D one among them, travels dense in the first round's buffer.
    Shapes: any float32 tensor.
    Wire: two rounds of all-reduce, p float32[a·r] and q float32[b·r]: 4r(a + b) bytes, or dense
    float32[n]: 4n bytes.
    State: q float32[b, r] per variable, the same on every worker; its columns are scaled to a
    maximum of 1, which changes no result and keeps M Q in range.
    Raises: ValueError for a rank below 1.
    Paper: Vogels et al. 2019, PowerSGD, algorithm 1 (rank-r update) and 2 (error feedback).
    Differs: the matrix keeps the last axis as columns, since TensorFlow's kernels end in the output
    channels; orthogonalisation by Householder QR, which stays finite on deficient matrices; the
    residual subtracts what this worker contributed, not the aggregate.
    """

    rank: int = 4

    nonexpansive = True
    homogeneous = True

    def __post_init__(self):
        check_integer("powersgd", "rank", self.rank, 1)

    def _matrix(self, spec):
        """(a, b, r), or None for a dense variable."""
        n = spec.shape.num_elements()
        if spec.shape.rank < 2 or n == 0:
            return None
        b = spec.shape[-1]
        a = n // b
        r = min(self.rank, a, b)
        return (a, b, r) if (a + b) * r < n else None

    def wire(self, spec):
        matrix = self._matrix(spec)
        if matrix is None:
            return {"dense": tf.TensorSpec([spec.shape.num_elements()], tf.float32)}
        a, b, r = matrix
        return {"p": tf.TensorSpec([a * r], tf.float32), "q": tf.TensorSpec([b * r], tf.float32)}

    def init_state(self, spec, ctx):
        matrix = self._matrix(spec)
        if matrix is None:
            return {}
        _, b, r = matrix
        return {"q": tf.reshape(ops.random_normal(b * r, ctx.shared_key()), [b, r])}

    def rounds(self, xs, states, ctx):
        sizes = [self._matrix(spec) for spec in ctx.specs]
        ms = [tf.reshape(x, s[:2]) if s else x for x, s in zip(xs, sizes)]
        first = [
            {"p": tf.reshape(m @ state["q"], [-1])} if s else {"dense": tf.reshape(m, [-1])}
            for m, state, s in zip(ms, states, sizes)
        ]
        replies = yield Sum(first)
        ps = [
            _orthonormal(tf.reshape(reply["p"], [s[0], s[2]])) if s else None
            for reply, s in zip(replies, sizes)
        ]
        mine = [tf.matmul(m, p, transpose_a=True) if s else None for m, p, s in zip(ms, ps, sizes)]
        second = yield Sum([{"q": tf.reshape(q, [-1])} if s else {} for q, s in zip(mine, sizes)])

        totals, sent, kept = [], [], []
        for i, s in enumerate(sizes):
            shape = ctx.specs[i].shape
            if s is None:
                totals.append(tf.reshape(replies[i]["dense"], shape))
                sent.append(xs[i])
                kept.append({})
                continue
            q = tf.reshape(second[i]["q"], [s[1], s[2]])
            totals.append(tf.reshape(tf.matmul(ps[i], q, transpose_b=True), shape))
            sent.append(tf.reshape(tf.matmul(ps[i], mine[i], transpose_b=True), shape))
            kept.append({"q": _unit_columns(q)})
        return totals, sent, kept


def _unit_columns(x):
    """x with every column divided by its largest magnitude; columns of zeros stay."""
    return tf.math.divide_no_nan(x, tf.reduce_max(tf.abs(x), axis=0))


def _orthonormal(p):
    """An orthonormal basis that spans the columns of p [a, r], a >= r; finite for any finite p."""
    # QR squares what it gets.
    return tf.linalg.qr(_unit_columns(p))[0]
