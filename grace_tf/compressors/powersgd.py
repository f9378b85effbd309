"""`powersgd`: low rank by a warm-started power iteration."""

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_integer, check_number
from grace_tf.core.list_compressor import residuals_of, settled
from grace_tf.core.registry import register
from grace_tf.core.rounds import Outcome, Sum, fuses
from grace_tf.memories.none import NoMemory
from grace_tf.memories.residual import Residual
from grace_tf.ops import dispatch, low_rank

_MOST_ITERATIONS = 16  # of two rounds each; a plan has keys for this many


@register(
    "powersgd",
    family="low rank",
    paper="arXiv:1905.13727",
    examples=("powersgd:rank=1", "powersgd:rank=2,iterations=2", "powersgd:min_compression=12"),
)
class PowerSGD(Compressor):
    """Sends a rank-r factorisation: P = orth(Σ M Q), Q = Σ Mᵀ P, C(M) = P Qᵀ.

    M is the gradient as a matrix [everything else, last axis] = [a, b], r = min(rank, a, b).  Each
    step starts from the last step's Q (warm start); the first Q is normal, drawn alike by all
    workers.  `sent` of a worker is P Pᵀ M, the projection of its own matrix.  Further iterations
    start from the Q of the one before.  A variable that is not more than `min_compression` times
    as large as its factors, such as every 1-D one, travels dense in the first round's buffer.
    Shapes: any float32 tensor.
    Wire: two rounds of all-reduce an iteration, p float32[a·r] and q float32[b·r]: 4r(a + b) bytes,
    in the second iteration named p2 and q2, and so on; or dense float32[n]: 4n bytes.
    State: q float32[b, r] per variable, the same on every worker; its columns are scaled to a
    maximum of 1, which changes no result and keeps M Q in range.
    Raises: ValueError for a rank below 1, iterations not from 1 to 16 or min_compression below 1.
    Paper: Vogels et al. 2019, PowerSGD, algorithm 1 (rank-r update) and 2 (error feedback);
    `min_compression` is from the authors' package, where it is 2.
    Differs: the matrix keeps the last axis as columns, since TensorFlow's kernels end in the output
    channels; Gram-Schmidt runs twice and replaces a column that depends on those before it by a
    unit vector, so that the rank never falls; the residual subtracts this worker's contribution,
    not the aggregate.
    Bits: results that all workers compute from the sums have the same bits in native and reference
    operations.  Each worker's own M Q and Mᵀ P need not, since only sums of them travel.
    """

    rank: int = 4
    min_compression: float = 1.0
    iterations: int = 1

    nonexpansive = True
    homogeneous = True

    def __post_init__(self):
        check_integer("powersgd", "rank", self.rank, 1)
        check_integer("powersgd", "iterations", self.iterations, 1, _MOST_ITERATIONS)
        check_number("powersgd", "min_compression", self.min_compression)
        if self.min_compression < 1:
            raise ValueError(
                f"powersgd: min_compression is at least 1, not {self.min_compression!r}."
            )

    def _size(self, spec):
        """The matrix size with its rank; a variable that travels dense is a column of rank 0."""
        return low_rank.matrix_size(spec.shape, self.rank, self.min_compression)

    def wire(self, spec):
        rows, columns, rank = self._size(spec)
        if not rank:
            return {"dense": tf.TensorSpec([rows], tf.float32)}
        parts = {}
        for i in range(self.iterations):
            parts[_nth("p", i)] = tf.TensorSpec([rows * rank], tf.float32)
            parts[_nth("q", i)] = tf.TensorSpec([columns * rank], tf.float32)
        return parts

    def init_state(self, spec, ctx):
        _, b, r = self._size(spec)
        if not r:
            return {}
        return {"q": tf.reshape(ops.random_normal(b * r, ctx.shared_key()), [b, r])}

    def rounds(self, xs, states, ctx):
        sizes = _sizes(self, ctx)
        qs, reply = [state["q"] for state in states if state], {}
        for i in range(self.iterations):
            p, dense, _ = low_rank.project(xs, None, 1.0, qs, sizes)
            (sums,) = yield Sum([_factors(p, "p", i) if i else low_rank.payload(sizes, dense, p=p)])
            reply.update(sums)
            basis = low_rank.orthonormal(reply.get(_nth("p", i), p), sizes)
            mine, _ = low_rank.reproject(xs, None, 1.0, basis, sizes)
            (sums,) = yield Sum([_factors(mine, "q", i)])
            q = sums.get(_nth("q", i), mine)
            qs = low_rank.unit_columns(q, sizes)
        totals, _ = low_rank.expand(basis, q, reply.get("dense", dense), 1.0, sizes, ctx.shapes)
        sent = None
        if ctx.needs_sent:
            sent, _ = low_rank.expand(basis, mine, dense, 1.0, sizes, ctx.shapes)
        return totals, sent, _states(qs, sizes)


def _sizes(compressor, ctx):
    return [compressor._size(spec) for spec in ctx.specs]


def _nth(name, iteration):
    """The name of a part in an iteration: p, p2, p3, …"""
    return f"{name}{iteration + 1}" if iteration else name


def _factors(factors, name, iteration):
    return {_nth(name, iteration): factors} if factors.shape[0] else {}


def _states(units, sizes):
    """The next states: q with columns scaled to a maximum of 1."""
    units = iter(units)
    return [{"q": next(units)} if size.rank else {} for size in sizes]


def _once(compressor, xs):
    return compressor.iterations == 1 and dispatch.runs_here(xs)


@fuses(PowerSGD, NoMemory, Residual, when=_once)
def in_three_passes(compressor, memory, xs, memories, states, ctx):
    """Reads gradients and residuals twice; writes the next residuals and the aggregate once."""
    sizes = _sizes(compressor, ctx)
    gradients = xs, residuals_of(memories), ctx.multiplier
    qs = [state["q"] for state in states if state]
    p, dense, finite = low_rank.project(*gradients, qs, sizes)
    (reply,) = yield Sum([low_rank.payload(sizes, dense, p=p)], finite)
    basis = low_rank.orthonormal(reply.get("p", p), sizes)
    mine, unsent = low_rank.reproject(*gradients, basis, sizes)
    (second,) = yield Sum([_factors(mine, "q", 0)])
    q, dense = second.get("q", mine), reply.get("dense", dense)
    means, finite = low_rank.expand(basis, q, dense, 1 / ctx.size, sizes, ctx.shapes)
    states = _states(low_rank.unit_columns(q, sizes), sizes)
    return Outcome(means, settled(memories, unsent), states, finite)
