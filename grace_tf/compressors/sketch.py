"""`sketch`: buckets of equally many elements, each sent as its mean."""

from __future__ import annotations

import tensorflow as tf

from grace_tf.core.hyperparameters import check_fraction, check_integer
from grace_tf.core.list_compressor import Encoded, ListCompressor
from grace_tf.core.registry import register
from grace_tf.ops import index_sets, min_max_sketch, selection
from grace_tf.ops.codes import quantiles


@register(
    "sketch",
    family="quantisation",
    paper="doi:10.1145/3183713.3196894",
    examples=("sketch:quantiles=5", "sketch:ratio=0.1", "sketch:ratio=0.1,rows=2"),
)
class Sketch(ListCompressor):
    """Sends for each element the id of its quantile bucket, and the buckets' means: C(x) = m[id].

    Each sign has a share of the q = `quantiles` buckets like its share of the elements; zeros have
    one.  All buckets of a sign hold about equally many elements; elements with equal sign, exponent
    and seven more bits share a bucket.  m is t times the mean, where 0 ≤ t ≤ 1 and t = 1 but for a
    truncation below 2^-15 (with tables below |b|·2^-30), so on a bucket b, where mean is that of x,
    ‖x − C(x)‖² = ‖x − mean‖² + |b|·(1 − t)²·mean² ≤ ‖x − mean‖² + |b|·mean² = ‖x‖².
    With `ratio` < 1 only the k = max(1, ⌊ratio·n⌋) elements of largest magnitude are sent, and the
    rest is 0.  With `rows` > 0 a MinMaxSketch carries the low bits of their ids, which tell the
    bucket in one of `groups` runs of q/groups: a hash table of `columns`·k cells for each row.  An
    id that collides there becomes one of smaller magnitude in its run, so of the same sign.  m is
    then of the elements that decode to a bucket: C(x) as above.
    Shapes: any float32 tensor of fewer than 2^31 elements; it travels dense if that is no longer.
    Wire: means float32[q], ids int32[b·⌈n/32⌉] with b = ⌈log2 q⌉, gathered: b·n/8 + 4q bytes.
    Below ratio 1: ids int32[b·⌈k/32⌉], indices int32[`index_sets.index_words(n, k)`]; with tables
    b is ⌈log2 groups⌉, and cells int32[rows·⌈columns·k/32⌉·log2(q/groups)]: 4.2 bits at rows=2.
    Ids of 4 bits (quantiles=16) leave less error, 7 % of the squares for 10 %: so rows is 0.
    Raises: ValueError or TypeError for quantiles outside 3..256, a ratio or columns outside (0, 1],
    rows outside 0..8 or at ratio 1, and with rows for groups not of runs of a power of two.
    Paper: Jiang et al. 2018, SketchML, sections 3.2 to 3.4.
    Differs: quantiles exact to 1/128 of a value; bit planes, not bytes; one index set of fixed
    size, not delta-coded keys of each group; means of what is decoded (as sent there: 13 %).
    """

    quantiles: int = 64
    ratio: float = 1.0
    rows: int = 0
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
        if self.rows and self.ratio == 1:
            raise ValueError("sketch: rows need a ratio below 1: what is dense has plain ids.")
        if self.rows and (rest or run < 2 or run & (run - 1)):
            raise ValueError(
                f"sketch: groups divides quantiles into runs of 2, 4, 8 and so on; {self.groups} "
                f"of {self.quantiles} does not."
            )

    exact_parts = property(lambda self: () if self.ratio == 1 else ("indices",))

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
        lengths = [spec.shape.num_elements() for spec in specs]
        sketched = (self.rows, self.columns, self.quantiles // self.groups) if self.rows else None
        return min_max_sketch.entries_of(lengths, self.ratio, self.quantiles, variables, sketched)

    def _key(self, ctx):
        """One stream for the whole list; only the tables use it, which also hash the variables."""
        return ctx.lane(0).shared_key()._replace(variable=0) if self.rows else None

    def encode(self, xs, residuals, multiplier, ctx):
        if self.ratio == 1:
            ids, means, *rest = quantiles.encode_list(xs, residuals, multiplier, self.quantiles)
            return Encoded({"means": means, "ids": ids}, *rest)
        entries, key = self._entries(ctx.specs, ctx.variables), self._key(ctx)
        values, indices, unsent, finite = selection.top_k_list(
            xs, residuals, multiplier, entries.ks
        )
        payload, sent = min_max_sketch.encode(values, indices, key, entries, unsent is not None)
        if unsent is not None:
            unsent = selection.refine_list(unsent, indices, values, sent, entries.ks)
        return Encoded(payload, unsent, finite)

    def decode(self, payload, factor, ctx):
        if self.ratio == 1:
            parts = payload["ids"], payload["means"]
            return quantiles.decode_list(*parts, ctx.shapes, factor, self.quantiles)
        entries = self._entries(ctx.specs, ctx.variables)
        parts = min_max_sketch.decode(payload, self._key(ctx), entries), payload["indices"]
        return index_sets.scatter_list(*parts, None, entries.ks, ctx.shapes, factor)

    def aggregate_list(self, payloads, ctx):
        return index_sets.without_faults(self.decode(payloads, 1.0, ctx))
