"""`powersgd`: low rank by a warm-started power iteration."""

import tensorflow as tf

from grace_tf import ops
from grace_tf.core import half_sums
from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_choice, check_integer, check_number
from grace_tf.core.list_compressor import compensated, settled
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
    examples=(
        "powersgd:rank=1",
        "powersgd:rank=2,iterations=2",
        "powersgd:min_compression=12",
        "powersgd:factors=bf16",
        "powersgd:ridge=0.1",
    ),
)
class PowerSGD(Compressor):
    """Sends a rank-r factorisation: P = orth(Σ M Q), Q = Σ Mᵀ P, C(M) = P Qᵀ.

    M is the gradient as a matrix [everything else, last axis] = [a, b], r = min(rank, a, b).  Each
    step starts from the last step's Q (warm start); the first Q is normal, drawn alike by all
    workers.  `sent` of a worker is P Pᵀ M, the projection of its own matrix.  Further iterations
    start from the Q of the one before.  A variable that is not more than `min_compression` times
    as large as its factors, such as every 1-D one, travels dense in the first round's buffer.
    With `ridge` λ > 0, Q is the ridge regression of M on P, Q = Mᵀ P (PᵀP + λ)⁻¹ = Mᵀ P / (1 + λ),
    as P has orthonormal columns: the steps are shorter, and a residual keeps the rest.
    With `factors="bf16"` the factors travel as bfloat16.  Any P is as good a start as its rounded
    form; what rounding takes from Q is not sent, so a residual has it.  No all-reduce rounds the
    last Q: up to three workers gather it, more exchange it in two hops (`core/half_sums.py`), and
    the rounding of a sum is in the residual of the worker that has formed it.
    Shapes: any float32 tensor.
    Wire: two rounds of all-reduce an iteration, p float32[a·r] and q float32[b·r]: 4r(a + b) bytes,
    in the second iteration named p2 and q2, and so on; or dense float32[n]: 4n bytes.  As bfloat16
    2r(a + b) bytes; dense stays float32.
    State: q float32[b, r] per variable, the same on every worker; its columns are scaled to a
    maximum of 1, which changes no result and keeps M Q in range.
    Raises: ValueError for a rank below 1, iterations not from 1 to 16 (15 with bf16),
    min_compression below 1, a ridge below 0 or other factors than float32 and bf16.
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
    ridge: float = 0.0
    factors: str = "float32"

    nonexpansive = True
    homogeneous = True

    def __post_init__(self):
        check_integer("powersgd", "rank", self.rank, 1)
        check_choice("powersgd", "factors", self.factors, ("float32", "bf16"))
        # In two hops the last factor takes one round more.
        most = _MOST_ITERATIONS - (self.factors == "bf16")
        check_integer("powersgd", "iterations", self.iterations, 1, most)
        check_number("powersgd", "ridge", self.ridge)
        if self.ridge < 0:
            raise ValueError(f"powersgd: ridge is at least 0, not {self.ridge!r}.")
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
            parts[_nth("p", i)] = tf.TensorSpec([rows * rank], self._dtype)
            parts[_nth("q", i)] = tf.TensorSpec([columns * rank], self._dtype)
        return parts

    @property
    def _dtype(self):
        return tf.float32 if self.factors == "float32" else tf.bfloat16

    def init_state(self, spec, ctx):
        _, b, r = self._size(spec)
        if not r:
            return {}
        return {"q": tf.reshape(ops.random_normal(b * r, ctx.shared_key()), [b, r])}

    def rounds(self, xs, states, ctx):
        sizes = _sizes(self, ctx)
        qs, total = [state["q"] for state in states if state], None
        for i in range(self.iterations):
            p, dense, _, _ = low_rank.project(xs, None, 1.0, qs, sizes)
            start = tf.cast(p, self._dtype)
            (sums,) = yield Sum(
                [_factors(start, "p", i) if i else low_rank.payload(sizes, dense, p=start)]
            )
            total = sums.get("dense", dense) if total is None else total
            p = tf.cast(sums.get(_nth("p", i), start), tf.float32)
            basis = low_rank.orthonormal(p, sizes)
            mine, _ = low_rank.reproject(xs, 1.0, basis, sizes)
            if self.ridge:
                mine = mine * (1 / (1 + self.ridge))
            q, mine = yield from self._summed(mine, i, ctx)
            qs = low_rank.unit_columns(q, sizes)
        totals, _ = low_rank.expand(basis, q, total, 1.0, sizes, ctx.shapes)
        sent = None
        if ctx.needs_sent:
            sent, _ = low_rank.expand(basis, mine, dense, 1.0, sizes, ctx.shapes)
        return totals, sent, _states(qs, sizes)

    def _summed(self, q, iteration, ctx):
        """The sum of q over workers, and what this one has sent of it."""
        parts = _factors(q, "q", iteration)
        if parts and self.factors == "bf16" and iteration == self.iterations - 1:
            sums, sent = yield from half_sums.summed(parts, ctx)
            (sent,) = sent.values()
        else:
            sent = q
            (sums,) = yield Sum([{name: tf.cast(q, self._dtype) for name in parts}])
        return tf.cast(sums.get(_nth("q", iteration), q), tf.float32), sent


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
    plain = compressor.iterations == 1 and not compressor.ridge and compressor.factors == "float32"
    return plain and dispatch.runs_here(xs)


@fuses(PowerSGD, NoMemory, Residual, when=_once)
def fused(compressor, memory, xs, memories, states, ctx):
    """With a residual, the first product writes M = gradient + residual, and the second reads M.

    Then the next residual is calculated in the memory of M.  Without a residual, both products
    read the gradients.
    """
    sizes = _sizes(compressor, ctx)
    xs, residuals, multiplier = compensated(memory, xs, memories, ctx)
    keeps = residuals is not None
    qs = [state["q"] for state in states if state]
    p, dense, accs, finite = low_rank.project(xs, residuals, multiplier, qs, sizes, keeps)
    (reply,) = yield Sum([low_rank.payload(sizes, dense, p=p)], finite)
    basis = low_rank.orthonormal(reply.get("p", p), sizes)
    whole = (accs, 1.0) if keeps else (xs, multiplier)
    mine, unsent = low_rank.reproject(*whole, basis, sizes, keeps)
    (second,) = yield Sum([_factors(mine, "q", 0)])
    q, dense = second.get("q", mine), reply.get("dense", dense)
    means, finite = low_rank.expand(basis, q, dense, 1 / ctx.size, sizes, ctx.shapes)
    states = _states(low_rank.unit_columns(q, sizes), sizes)
    return Outcome(means, settled(memories, unsent), states, finite)
