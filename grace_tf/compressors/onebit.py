"""One bit an element, and the mean of each side."""

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.compressor import Compressor
from grace_tf.core.registry import register
from grace_tf.core.rounds import Gather, Outcome, fuses
from grace_tf.memories.none import NoMemory
from grace_tf.memories.residual import Residual, residuals_of, settled
from grace_tf.ops import choice
from grace_tf.ops.backend.carrier import one_row
from grace_tf.ops.scaled_signs import Cells, scaled_sign_list, sum_scaled_sign_list


@register(
    "onebit",
    family="quantisation",
    paper="doi:10.21437/Interspeech.2014-274",
    examples=("onebit:columns=true",),
)
class OneBit(Compressor):
    """Sends signs and the mean of each side: C(x) = the mean of x < 0 there, of x ≥ 0 elsewhere.

    The means are of one variable, or with `columns=true` of each column of the matrix
    [everything else, last axis]; a variable of fewer than two axes is one column.  The mean of no
    elements is 0.  A denormal counts as 0, and so does a mean below 2^-110.
    C(x) is the projection of x on the tensors that are constant on each side, so that
    ‖x − C(x)‖ ≤ ‖x‖: the residual is the paper's memory.
    Shapes: any float32 tensor.
    Wire: signs int32[⌈n/32⌉], low float32[m] and high float32[m], gathered: n/8 + 8m bytes, m
    being 1 or the number of columns.
    Raises: TypeError for `columns` that is no bool.
    Paper: Seide et al. 2014, 1-Bit Stochastic Gradient Descent: threshold 0, the reconstruction
    values that minimise the quantisation error, and error feedback.
    Differs: means per variable by default, since columns are many in narrow matrices; 4 bytes for
    a mean; the aggregate is not quantised again.
    """

    columns: bool = False

    nonexpansive = True
    elementwise = True
    homogeneous = True

    def __post_init__(self):
        if not isinstance(self.columns, bool):
            raise TypeError(f"onebit: columns is true or false, not {self.columns!r}.")

    @property
    def _cells(self):
        return Cells(sides=2, by_column=self.columns)

    def wire(self, spec):
        levels = tf.TensorSpec([self._cells.count(spec.shape)], tf.float32)
        words = ops.packed_words(spec.shape.num_elements(), 1)
        return {"signs": tf.TensorSpec([words], tf.int32), "low": levels, "high": levels}

    def _encode(self, xs, residuals, multiplier):
        encoded = scaled_sign_list(xs, residuals, multiplier, self._cells)
        low, high = encoded.levels
        return {"signs": encoded.words, "low": low, "high": high}, encoded

    def _sum(self, payloads, factor, ctx):
        levels = [payloads["low"], payloads["high"]]
        shapes = [spec.shape for spec in ctx.specs]
        return sum_scaled_sign_list(payloads["signs"], levels, shapes, factor, self._cells)

    def compress_list(self, xs, ctx):
        return self._encode(xs, None, 1.0)[0]

    def decompress_list(self, payload, ctx):
        return self._sum(one_row(payload), 1.0, ctx)[0]

    def compress(self, x, ctx):
        return self.compress_list([x], ctx)

    def decompress(self, payload, ctx):
        return self.decompress_list(payload, ctx)[0]

    def aggregate(self, payloads, ctx):
        ((total,), _) = self._sum(payloads, 1.0, ctx)
        return total


@fuses(OneBit, NoMemory, Residual, when=lambda compressor, xs: choice.runs_here(xs))
def in_two_passes(compressor, memory, xs, memories, states, ctx):
    """One read for signs and means, one for what is kept; each element is written once."""
    payload, encoded = compressor._encode(xs, residuals_of(memories), ctx.multiplier)
    (reply,) = yield Gather([payload], encoded.finite)
    means, finite = compressor._sum(reply, 1 / ctx.size, ctx)
    return Outcome(means, settled(memories, encoded.kept), states, finite)
