"""`chunktopk`: whole chunks of elements, chosen alike by all workers, so that they are summed."""

from __future__ import annotations

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.compressor import Compressor
from grace_tf.core.flat_groups import FlatGroup, cut, lane_of_each
from grace_tf.core.hyperparameters import check_choice, check_fraction, check_integer
from grace_tf.core.list_compressor import compensated, settled
from grace_tf.core.registry import register
from grace_tf.core.rounds import Outcome, Sum, fuses
from grace_tf.memories.none import NoMemory
from grace_tf.memories.residual import Residual
from grace_tf.ops import dispatch, selection
from grace_tf.ops.backend.words_as_floats import one_row

_MIX = 0x9E3779B1 - 2**32  # an odd number: 2^32 divided by the golden ratio


@register(
    "chunktopk",
    family="sparsification",
    paper="arXiv:2510.26709",
    examples=(
        "chunktopk:ratio=0.1,chunk=16",
        "chunktopk:ratio=0.1,chunk=50,score=sketch",
        "chunktopk:ratio=1.0,chunk=64",
    ),
)
class ChunkTopK(Compressor):
    """Sends the K = max(1, ⌊ratio·m⌋) of the m = ⌈n/chunk⌉ chunks of a variable that have the
    highest score over all workers: C(x) = x on them, else 0.

    A chunk is a run of `chunk` elements.  The last one may be shorter, and its score is multiplied
    by √(chunk/its length), so that elements there have the same chance.  The score is the sum over
    workers of ‖x_c‖ (`score="norm"`), or with `score="sketch"` the norm of Σ_w x_c·V, where V has
    `rank` columns of random signs, drawn alike by all workers.  So a chunk in which the workers'
    gradients cancel is chosen by the norm and passed over by the sketch.  All workers choose alike:
    no index is sent, and what a worker sends does not grow with the number of workers.
    Ties go to the lower index.  A variable that would take no fewer bytes travels dense.
    Shapes: any float32 tensor of fewer than 2^31 elements.
    Wire: two rounds of all-reduce, scores float32[m], or float32[m·rank] with the sketch, and
    values float32[min(K·chunk, n)]: about 4n·(1/chunk + ratio) bytes, by default 1.4 % of 4n.
    Sparse gradients: of the m rows that a step touches each worker sends the max(1, ⌊s·m⌋) of
    largest norm whole, s = max(ratio, row_ratio), and their numbers, as topk does: workers touch
    other rows, so there are no chunks that they could choose alike.  The residual keeps the others.
    Raises: ValueError or TypeError for a ratio or row_ratio outside (0, 1], chunk or rank below 1,
    or another score.
    Paper: ARC-Top-K 2025, arXiv:2510.26709 (the sketch); Li et al. 2024, HotNets, Rethinking
    Gradient Compression (TopKC: chunks by their norms).
    Differs: chunks are runs of equal length, not rows of a matrix; V has signs, not normal numbers.
    Where norms below 2^-110 compete, the lower index wins.
    """

    ratio: float = 0.01
    chunk: int = 256
    score: str = "norm"
    rank: int = 4
    row_ratio: float = 0.25

    nonexpansive = True
    homogeneous = True

    def __post_init__(self):
        check_fraction("chunktopk", "ratio", self.ratio)
        check_integer("chunktopk", "chunk", self.chunk, 1)
        check_choice("chunktopk", "score", self.score, ("norm", "sketch"))
        check_integer("chunktopk", "rank", self.rank, 1)
        check_fraction("chunktopk", "row_ratio", self.row_ratio)

    def wants(self, spec):
        return self.nbytes(spec) < 4 * spec.shape.num_elements()

    @property
    def row_share(self):
        return max(self.ratio, self.row_ratio)

    def wire(self, spec):
        n = spec.shape.num_elements()
        m = -(-n // self.chunk)
        scores = m if self.score == "norm" else m * self.rank
        return {
            "scores": tf.TensorSpec([scores], tf.float32),
            "values": tf.TensorSpec([min(n, self.count(m) * self.chunk)], tf.float32),
        }

    def count(self, chunks):
        """How many of these chunks of a variable are sent."""
        return max(1, int(self.ratio * chunks))

    def rounds(self, xs, states, ctx):
        chosen, mine, sums, _ = yield from self._exchange(xs, None, 1.0, ctx)
        totals, _ = chosen.decode(sums, 1.0)
        sent = chosen.decode(mine, 1.0)[0] if ctx.needs_sent else None
        return totals, sent, list(states)

    def _exchange(self, xs, residuals, multiplier, ctx):
        """The two rounds: returns (the chosen chunks, own values, sums, next residuals)."""
        group = FlatGroup(tuple(ctx.lengths), self.chunk)
        flat, finite = group.join(xs, residuals, multiplier)
        rows = tf.reshape(flat, [-1, self.chunk])
        own = self._scores(rows, group, ctx)
        (reply,) = yield Sum([{"scores": own}], finite)
        chosen = _Chosen(self, group, reply["scores"], ctx)
        values = tf.gather(rows, chosen.chunks)
        mine = cut(tf.reshape(values, [-1]), chosen.filled, chosen.lengths)
        (reply,) = yield Sum([{"values": mine}])
        unsent = None
        if residuals is not None:
            # Made of the values, so that nothing reads the rows any more: they change in place.
            zeros = values - values
            rows = tf.tensor_scatter_nd_update(rows, chosen.chunks[:, tf.newaxis], zeros)
            unsent, _ = group.apart(tf.reshape(rows, [-1]), 1.0, ctx.shapes)
        return chosen, mine, reply["values"], unsent

    def _scores(self, rows, group, ctx):
        if self.score == "norm":
            return ops.block_scales(tf.reshape(rows, [-1]), self.chunk, "l2")
        matrices = tf.split(rows, group.chunks) if len(ctx) > 1 else [rows]
        products = [tf.matmul(m, v) for m, v in zip(matrices, self._signs(ctx))]
        return tf.reshape(tf.concat(products, 0), [-1])

    def _signs(self, ctx):
        """V of each lane.  One draw for all of them, which each mixes with its variable's number,
        takes as many nodes for many lanes as for one."""
        key = ctx.lane(0).shared_key()._replace(variable=0)
        words = ops.random_words(self.chunk * self.rank, key)
        numbers = tf.constant(ctx.variables, tf.int32)[:, tf.newaxis] * _MIX
        signs = tf.where(tf.bitwise.bitwise_xor(words, numbers) * _MIX < 0, -1.0, 1.0)
        return tf.unstack(tf.reshape(signs, [-1, self.chunk, self.rank]))


class _Chosen:
    """The chunks that all workers send, found from the sums of the scores.

    Attributes:
      chunks: their numbers in the group, ascending, int32 [the sum of the K].
      lengths: the number of values that each lane sends.
      filled: the same, with the zeros that fill up the last chunk of a lane.
    """

    def __init__(self, compressor, group, scores, ctx):
        self._width, self._shapes = group.width, ctx.shapes
        ks = [compressor.count(chunks) for chunks in group.chunks]
        if compressor.score == "sketch":
            scores = ops.block_scales(scores, compressor.rank, "l2")
        scores = _fair(scores, group)
        lanes = tf.split(scores, group.chunks) if len(ks) > 1 else [scores]
        _, self._places, _, _ = selection.top_k_list(lanes, None, 1.0, ks)
        self.chunks = self._places + tf.gather(
            tf.constant(group.first_chunks, tf.int32), lane_of_each(ks)
        )
        self.filled = [k * group.width for k in ks]
        self.lengths = [min(n, all_) for n, all_ in zip(ctx.lengths, self.filled)]
        self._counts = self._counted(group, ks)

    def _counted(self, group, ks):
        """How many values of each lane belong to an element, int32 [1, lanes]; None for all."""
        pairs = zip(group.filled_lengths, group.lengths, self.lengths)
        missing = [full - n if sent < n else 0 for full, n, sent in pairs]
        if not any(missing):
            return None
        ends = tf.constant([sum(ks[: i + 1]) - 1 for i in range(len(ks))])
        last = tf.gather(self._places, ends) == tf.constant(group.chunks) - 1
        return (tf.constant(self.lengths) - tf.where(last, tf.constant(missing), 0))[tf.newaxis]

    def decode(self, values, factor):
        """The lanes with these values in the chosen chunks, times factor: (tensors, finite)."""
        elements = self._places[:, tf.newaxis] * self._width + tf.range(self._width)
        elements = cut(tf.reshape(elements, [-1]), self.filled, self.lengths)
        row = one_row({"values": values, "elements": elements})
        parts = row["values"], row["elements"], self._counts, self.lengths
        return selection.scatter_list(*parts, self._shapes, factor)


def _fair(scores, group):
    """The scores, those of the shorter last chunks as if these were full."""
    lasts = [first + m - 1 for first, m in zip(group.first_chunks, group.chunks)]
    pairs = zip(group.filled_lengths, group.lengths)
    shares = [(group.width / (group.width - full + n)) ** 0.5 for full, n in pairs]
    if max(shares) == 1:
        return scores
    raised = tf.gather(scores, lasts) * tf.constant(shares, tf.float32)
    return tf.tensor_scatter_nd_update(scores, tf.constant(lasts)[:, tf.newaxis], raised)


@fuses(ChunkTopK, NoMemory, Residual, when=lambda compressor, xs: dispatch.runs_here(xs))
def with_its_residual(compressor, memory, xs, memories, states, ctx):
    """Adds the residual as it joins the lanes, and writes the next one from the same tensor."""
    steps = compressor._exchange(*compensated(memory, xs, memories, ctx), ctx)
    chosen, _, sums, unsent = yield from steps
    means, finite = chosen.decode(sums, 1 / ctx.size)
    return Outcome(means, settled(memories, unsent), states, finite)
