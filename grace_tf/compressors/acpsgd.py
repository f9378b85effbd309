"""`acpsgd`: low rank by alternating power iterations, in one all-reduce a step."""

import tensorflow as tf

from grace_tf import ops
from grace_tf.core import half_sums
from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_choice, check_integer
from grace_tf.core.list_compressor import compensated, settled
from grace_tf.core.registry import register
from grace_tf.core.rounds import Outcome, Sum, fuses
from grace_tf.memories.none import NoMemory
from grace_tf.memories.residual import Residual
from grace_tf.ops import dispatch, low_rank, two_sided_low_rank
from grace_tf.ops.two_sided_low_rank import Bases, Products


@register(
    "acpsgd",
    family="low rank",
    paper="arXiv:2306.08881",
    examples=("acpsgd:rank=2", "acpsgd:factors=bf16"),
)
class ACPSGD(Compressor):
    """Sends P = M B and Q = Mᵀ A of half the rank: C(M) = M − (1 − A Aᵀ) M (1 − B Bᵀ).

    M is the gradient as a matrix [everything else, last axis] = [a, b].  Its factors have r = rank
    columns, in two halves: in one step the first half sends P and the second Q, in the next the
    first half sends Q and the second P.  The columns of A [a, r/2] and B [b, r/2] are orthonormal
    bases of the sums of P and of Q from the last step; at first of normal numbers that all workers
    draw alike.  The part that the first half has captured is removed from the sum with which the
    second half goes on.  `sent` of a worker is C of its own matrix.  A variable whose P and Q of
    all columns would be no smaller than itself, such as every 1-D one, travels dense in the same
    buffer.
    With `factors="bf16"` P and Q travel as bfloat16, and what rounding takes from them is not sent,
    so a residual has it.  No all-reduce rounds them: up to three workers gather them, more exchange
    them in two hops (`core/half_sums.py`), and the rounding of a sum is in the residual of the
    worker that has formed it.
    Shapes: any float32 tensor.
    Wire: one all-reduce of p float32[a·r/2] and q float32[b·r/2]: 2r(a + b) bytes on every step, or
    dense float32[n]: 4n bytes.  As bfloat16 r(a + b) bytes; dense stays float32, in an all-reduce
    before.
    State: factors float32[(a + b)·r/2] per variable, p and then q, the same on every worker.
    Raises: ValueError for a rank below 2, or an odd one, and for other factors than float32 and
    bf16.
    Paper: Zhang et al. 2023, Evaluation and Optimization of Gradient Compression for Distributed
    Deep Learning, ACP-SGD.
    Differs: the paper sends P of all columns in one step and Q of all in the next.  For a matrix of
    30522 × 768 one step would send 40 times as many bytes as the next; here halves of the columns
    take turns, so that each variable sends the same number of bytes in every step.  A basis column
    that depends on those before it is replaced by a unit vector, so that the rank never falls.
    Bits: results that all workers compute from the sums have the same bits in native and reference
    operations.  Each worker's own products need not, since only sums of them travel.
    """

    rank: int = 4
    factors: str = "float32"

    nonexpansive = True
    homogeneous = True

    def __post_init__(self):
        check_integer("acpsgd", "rank", self.rank, 2)
        if self.rank % 2:
            raise ValueError(
                f"acpsgd: rank is even, not {self.rank}: half of the columns send P while the "
                "other half send Q."
            )
        check_choice("acpsgd", "factors", self.factors, ("float32", "bf16"))

    def _size(self, spec):
        """The matrix size with the rank of one half; a dense variable is a column of rank 0."""
        size = low_rank.matrix_size(spec.shape, self.rank)
        return size._replace(rank=size.rank // 2)

    def wire(self, spec):
        rows, columns, half = self._size(spec)
        if not half:
            return {"dense": tf.TensorSpec([rows], tf.float32)}
        dtype = tf.float32 if self.factors == "float32" else tf.bfloat16
        return {
            "p": tf.TensorSpec([rows * half], dtype),
            "q": tf.TensorSpec([columns * half], dtype),
        }

    def init_state(self, spec, ctx):
        rows, columns, half = self._size(spec)
        if not half:
            return {}
        return {"factors": ops.random_normal((rows + columns) * half, ctx.shared_key())}

    def rounds(self, xs, states, ctx):
        sizes = [self._size(spec) for spec in ctx.specs]
        bases = _bases(states, sizes)
        mine, _, _ = two_sided_low_rank.alternate(xs, None, 1.0, bases, sizes)
        sums, mine = yield from self._summed(mine, sizes, ctx)
        totals, _ = two_sided_low_rank.expand_sides(bases, sums, 1.0, sizes, ctx.shapes)
        sent = None
        if ctx.needs_sent:
            sent, _ = two_sided_low_rank.expand_sides(bases, mine, 1.0, sizes, ctx.shapes)
        return totals, sent, _states(sums, bases, sizes, ctx.step)

    def _summed(self, mine, sizes, ctx):
        """The sums of the products over workers, and what this one has sent of them."""
        if self.factors == "float32":
            (reply,) = yield Sum([low_rank.payload(sizes, mine.dense, p=mine.p, q=mine.q)])
            return mine._replace(**reply), mine
        reply, sums, sent = {}, {}, {}
        if mine.dense.shape[0]:
            (reply,) = yield Sum([{"dense": mine.dense}])
        if mine.p.shape[0]:
            sums, sent = yield from half_sums.summed({"p": mine.p, "q": mine.q}, ctx)
        return mine._replace(**reply, **sums), mine._replace(**sent)


def _bases(states, sizes):
    """Orthonormal columns from the sums of the last step."""
    return two_sided_low_rank.bases([state["factors"] for state in states if state], sizes)


def _states(sums: Products, bases: Bases, sizes, step):
    """The next states; the second half of this step gets only what the first has not captured."""
    factors = iter(two_sided_low_rank.turned(sums, bases, step, sizes))
    return [{"factors": next(factors)} if size.rank else {} for size in sizes]


def _whole(compressor, xs):
    return compressor.factors == "float32" and dispatch.runs_here(xs)


@fuses(ACPSGD, NoMemory, Residual, when=_whole)
def fused(compressor, memory, xs, memories, states, ctx):
    """One product, then the next residuals, then, behind the exchange, the aggregate."""
    sizes = [compressor._size(spec) for spec in ctx.specs]
    bases = _bases(states, sizes)
    gradients = compensated(memory, xs, memories, ctx)
    mine, unsent, finite = two_sided_low_rank.alternate(*gradients, bases, sizes)
    (reply,) = yield Sum([low_rank.payload(sizes, mine.dense, p=mine.p, q=mine.q)], finite)
    sums = mine._replace(**reply)
    means, finite = two_sided_low_rank.expand_sides(bases, sums, 1 / ctx.size, sizes, ctx.shapes)
    next_states = _states(sums, bases, sizes, ctx.step)
    return Outcome(means, settled(memories, unsent), next_states, finite)
