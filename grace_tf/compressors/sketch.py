"""Buckets of equally many elements, as their means."""

from __future__ import annotations

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_fraction, check_integer
from grace_tf.core.registry import register
from grace_tf.core.rounds import Gather, Outcome, fuses
from grace_tf.memories.none import NoMemory
from grace_tf.memories.residual import Residual, residuals_of, settled
from grace_tf.ops import index_sets, lists, min_max, quantiles, sparse_lists


@register(
    "sketch",
    family="quantisation",
    paper="doi:10.1145/3183713.3196894",
    examples=(
        "sketch:quantiles=5",
        "sketch:ratio=0.1",
        "sketch:ratio=0.1,rows=0",
    ),
)
class Sketch(Compressor):
    """Sends for each element the id of its quantile bucket, and the buckets' means: C(x) = m[id].

    Each sign has a share of the q = `quantiles` buckets like its share of the elements, and zeros
    have one: no bucket holds elements of two signs.  Of each sign's elements every bucket has about
    equally many; those that agree in sign, exponent and seven more bits stay together.  As long as
    m is the mean, C projects x on the vectors that are constant on each bucket.  Here m is t times
    the mean with 0 ≤ t ≤ 1, t being 1 but for a truncation below 2^-16, and on a bucket b
    ‖x − C(x)‖² = ‖x − mean‖² + |b|·(1 − t)²·mean² ≤ ‖x‖²: residuals stay bounded.
    With `ratio` < 1, the k = max(1, ⌊ratio·n⌋) elements of largest magnitude are sent, the others
    are 0.  With `rows` > 0 then only the upper bits of an id, which tell its sign and which of
    `groups` runs of q/groups buckets it lies in, are sent as they are.  The others go into a
    MinMaxSketch of `rows` tables of `columns`·k cells each (section 3.3), which makes an id that
    collides one of smaller magnitude in the same run, never larger or of the other sign.  m[id] is
    the mean of the elements that are looked up as id, so C is a projection still.
    Shapes: any float32 tensor of fewer than 2^31 elements; one that would take no fewer bytes than
    its elements travels dense.
    Wire: means float32[q], ids int32[b·⌈n/32⌉] with b = ⌈log2 q⌉, gathered: b·n/8 + 4q bytes.
    Below ratio 1: ids of k entries, of log2 groups bits with sketches, cells
    int32[rows·⌈columns·k/32⌉·log2(q/groups)], and indices int32[`index_sets.index_words(n, k)`].
    The default sketch takes 4.2 bits an entry, where plain ids (`rows=0`) take 6.
    Raises: ValueError or TypeError for quantiles outside 3..256, a ratio or columns outside (0, 1],
    rows outside 0..8, and, with sketches, groups that do not make runs of a power of two.
    Paper: Jiang et al. 2018, SketchML, sections 3.2 to 3.4.
    Differs: quantiles by counting, exact to 1/128 of a value, not from a quantile sketch; bit
    planes instead of bytes; one index set of fixed size instead of delta-encoded keys by group;
    zeros have a bucket; the means are of what is decoded, which the paper leaves too small.
    """

    quantiles: int = 64
    ratio: float = 1.0
    rows: int = 2
    columns: float = 0.2
    groups: int = 8

    nonexpansive = True
    homogeneous = True

    def __post_init__(self):
        check_integer("sketch", "quantiles", self.quantiles, 3, 256)
        check_fraction("sketch", "ratio", self.ratio)
        check_integer("sketch", "rows", self.rows, 0, 8)
        check_fraction("sketch", "columns", self.columns)
        check_integer("sketch", "groups", self.groups, 2, 128)
        run, rest = divmod(self.quantiles, self.groups)
        if self._sketched and (rest or run < 2 or run & (run - 1)):
            raise ValueError(
                f"sketch: groups divides quantiles into runs of 2, 4, 8 and so on; {self.groups} "
                f"of {self.quantiles} does not."
            )

    exact_parts = property(lambda self: () if self.ratio == 1 else ("indices",))
    _sketched = property(lambda self: self.ratio < 1 and self.rows > 0)

    def wants(self, spec):
        return self.nbytes(spec) < 4 * spec.shape.num_elements()

    def wire(self, spec):
        n = spec.shape.num_elements()
        words = {"ids": quantiles.id_words(n, self.quantiles)}
        if self.ratio < 1:
            words = self._entries([spec], (0,)).words
        parts = {name: tf.TensorSpec([size], tf.int32) for name, size in words.items()}
        return {"means": tf.TensorSpec([self.quantiles], tf.float32), **parts}

    def _entries(self, specs, variables):
        lengths, sketched = [spec.shape.num_elements() for spec in specs], None
        if self.rows:
            sketched = self.rows, self.columns, self.quantiles // self.groups
        return min_max.entries_of(lengths, self.ratio, self.quantiles, variables, sketched)

    def compress(self, x, ctx):
        return self.compress_list([x], ctx)

    def decompress(self, payload, ctx):
        return self.decompress_list(payload, ctx)[0]

    def aggregate(self, payloads, ctx):
        return self._decode(payloads, 1.0, ctx)[0][0]

    def compress_list(self, xs, ctx):
        if self.ratio == 1:
            return self._encode_dense(xs, None, 1.0)[0]
        entries = self._entries(ctx.specs, ctx.variables)
        chosen = [ops.top_k(tf.reshape(x, [-1]), k) for x, k in zip(xs, entries.ks)]
        values, indices = (tf.concat(part, 0) for part in zip(*chosen))
        return min_max.encode(values, indices, _key(ctx), entries)

    def decompress_list(self, payload, ctx):
        return self._decode({name: part[None] for name, part in payload.items()}, 1.0, ctx)[0]

    def _encode_dense(self, xs, residuals, multiplier):
        ids, means, *rest = quantiles.encode_list(xs, residuals, multiplier, self.quantiles)
        return {"means": means, "ids": ids}, *rest

    def _encode_largest(self, xs, residuals, ctx):
        entries, key = self._entries(ctx.specs, ctx.variables), _key(ctx)
        values, indices, kept, finite = sparse_lists.top_k_list(
            xs, residuals, ctx.multiplier, entries.ks
        )
        payload = min_max.encode(values, indices, key, entries)
        if kept is not None:
            own = {name: part[None] for name, part in payload.items()}
            sent = min_max.decode(own, key, entries, indices[None])[0]
            kept = sparse_lists.refine_list(kept, indices, values, sent, entries.ks)
        return payload, kept, finite

    def _decode(self, payloads, factor, ctx):
        shapes = [spec.shape for spec in ctx.specs]
        if self.ratio == 1:
            parts = payloads["ids"], payloads["means"]
            return quantiles.decode_list(*parts, shapes, factor, self.quantiles)
        entries = self._entries(ctx.specs, ctx.variables)
        parts = min_max.decode(payloads, _key(ctx), entries), payloads["indices"]
        return index_sets.scatter_list(*parts, None, entries.ks, shapes, tf.constant(factor))


def _key(ctx):
    """One stream for all variables, whose numbers are hashed too: so that a list draws once."""
    return ctx.lane(0).shared_key()._replace(variable=0)


@fuses(Sketch, NoMemory, Residual, when=lambda compressor, xs: lists.runs_here(xs))
def in_two_passes(compressor, memory, xs, memories, states, ctx):
    """Counting, then ids, residual and flag; below ratio 1 selection, then the rest in O(k)."""
    residuals = residuals_of(memories)
    if compressor.ratio == 1:
        sent = compressor._encode_dense(xs, residuals, ctx.multiplier)
    else:
        sent = compressor._encode_largest(xs, residuals, ctx)
    payload, kept, finite = sent
    (reply,) = yield Gather([payload], finite)
    means, finite = compressor._decode(reply, 1 / ctx.size, ctx)
    return Outcome(means, settled(memories, kept), states, finite)
