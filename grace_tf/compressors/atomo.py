"""`atomo`: a few singular triples, drawn at random without bias."""

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_integer
from grace_tf.core.registry import register
from grace_tf.ops import low_rank


@register("atomo", family="low rank", paper="arXiv:1806.04090", examples=("atomo:atoms=6",))
class Atomo(Compressor):
    """Sends s = `atoms` singular triples of the gradient: C(M) = Σ σᵢ/pᵢ·uᵢ vᵢᵀ over those drawn.

    M = Σ σᵢ uᵢ vᵢᵀ is the gradient as a matrix [everything else, last axis] = [a, b] of r = min(a,
    b) triples, σ falling.  pᵢ = min(1, c·σᵢ), with c such that Σ pᵢ = s.  One uniform number draws
    exactly s triples, each with the probability pᵢ (systematic sampling), so C is unbiased; fewer
    where fewer σ are not 0.  A matrix whose largest element is below 2^-110 is sent as zeros.  A
    variable that left and right would not shorten, such as every 1-D one, travels dense.
    E‖C(M) − M‖² = Σ σᵢ²·(1/pᵢ − 1) ≤ (r/s − 1)·‖M‖².
    Use powersgd: it sends as many numbers, sums them on the way, needs no singular value
    decomposition in each step, and with its residual its error is far smaller.
    Shapes: any float32 tensor.
    Wire: left float32[a·s], columns σᵢ/pᵢ·uᵢ, and right float32[b·s], gathered: 4s(a + b) bytes;
    a dense variable is left.
    Raises: ValueError or TypeError for atoms that are no integer of at least 1.
    Paper: Wang et al. 2018, ATOMO: Communication-efficient Learning via Atomic Sparsification,
    algorithm 1 with singular values, s = 3.
    Differs: always s triples, where the paper draws each by itself and sends as many as come.
    """

    atoms: int = 3

    unbiased = True
    homogeneous = True

    def __post_init__(self):
        check_integer("atomo", "atoms", self.atoms, 1)

    def _size(self, spec):
        return low_rank.matrix_size(spec.shape, self.atoms)

    def wants(self, spec):
        return self._size(spec).rank > 0

    def wire(self, spec):
        rows, columns, atoms = self._size(spec)
        return {
            "left": tf.TensorSpec([rows * atoms if atoms else rows], tf.float32),
            "right": tf.TensorSpec([columns * atoms], tf.float32),
        }

    def relative_bound(self, spec):
        size = self._size(spec)
        return min(size.rows, size.columns) / size.rank - 1 if size.rank else 0.0

    def compress(self, x, ctx):
        rows, columns, atoms = self._size(ctx.spec)
        flat = tf.reshape(x, [-1])
        if not atoms:
            return {"left": flat, "right": flat[:0]}
        flat = tf.where(tf.math.is_finite(flat), flat, 0.0)  # the step is refused in any case
        scale = ops.block_scales(flat, ctx.elements, "max")
        unit = tf.reshape(tf.math.divide_no_nan(flat, scale), [rows, columns])
        sigma, u, v = tf.linalg.svd(unit)
        chosen, factors = _drawn(sigma, atoms, ops.uniform(1, ctx.key()))
        left = tf.gather(u, chosen, axis=1) * (factors * scale)
        right = tf.gather(v, chosen, axis=1)
        return {"left": tf.reshape(left, [-1]), "right": tf.reshape(right, [-1])}

    def decompress(self, payload, ctx):
        size = self._size(ctx.spec)
        if not size.rank:
            return tf.reshape(payload["left"], ctx.spec.shape)
        factors = payload["left"], payload["right"], tf.zeros([0])
        return low_rank.expand(*factors, 1.0, [size], [ctx.spec.shape])[0][0]


def _drawn(sigma, atoms, uniform):
    """(the numbers of the triples that are drawn, their σ/p), both of this many atoms."""
    sigma = tf.cast(sigma, tf.float64)
    r = sigma.shape[0]
    # The first i triples have p = 1, and share the places with the others' c·σ: i is the smallest
    # for which no c·σ is above 1.
    certain = tf.range(atoms)
    rests = tf.cumsum(sigma, reverse=True)[:atoms]
    places = tf.cast(atoms - certain, tf.float64)
    i = tf.argmax(tf.cast(sigma[:atoms] * places <= rests, tf.int32), output_type=tf.int32)
    rest, free = tf.gather(rests, i), tf.gather(places, i)
    later = tf.range(r) >= i
    p = tf.where(later, tf.math.divide_no_nan(sigma * free, rest), tf.ones_like(sigma))
    # The exact value of the last sum.  A rounded one could lie below the last number drawn.
    last = tf.cast(tf.where(rest > 0, atoms, i), tf.float64)
    ends = tf.concat([tf.cumsum(p)[:-1], [last]], 0)
    wanted = tf.cast(tf.range(1, atoms + 1), tf.float64) - tf.cast(uniform, tf.float64)
    found = tf.searchsorted(ends, wanted, side="left")
    chosen = tf.minimum(found, r - 1)
    factors = tf.where(tf.gather(later, chosen), rest / free, tf.gather(sigma, chosen))
    return chosen, tf.cast(tf.where(found < r, factors, tf.zeros_like(factors)), tf.float32)
