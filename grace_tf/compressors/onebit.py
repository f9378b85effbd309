"""`onebit`: one bit an element, and the mean of each sign."""

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.list_compressor import Encoded, ListCompressor
from grace_tf.core.registry import register
from grace_tf.ops.scaled_signs import Cells, scaled_sign_list, sum_scaled_sign_list


@register(
    "onebit",
    family="quantisation",
    paper="doi:10.21437/Interspeech.2014-274",
    memory="residual:decay=0.9",
    examples=("onebit:columns=true",),
)
class OneBit(ListCompressor):
    """Sends signs and the mean of each side: C(x) = the mean of x < 0 there, of x ≥ 0 elsewhere.

    The means are of one variable, or with `columns=true` of each column of the matrix
    [everything else, last axis]; a variable of fewer than two axes is one column.  The mean of no
    elements is 0.  A denormal counts as 0, and so does a mean below 2^-110.
    C(x) is the projection of x on the tensors that are constant on each side, so that
    ‖x − C(x)‖ ≤ ‖x‖, which allows a residual.
    Shapes: any float32 tensor.
    Wire: signs int32[⌈n/32⌉], low float32[m] and high float32[m], gathered: n/8 + 8m bytes, m
    being 1 or the number of columns.
    Raises: TypeError for `columns` that is no bool.
    Paper: Seide et al. 2014, 1-Bit Stochastic Gradient Descent: threshold 0, the reconstruction
    values that minimise the quantisation error, and error feedback.
    Differs: the memory by default is the paper's residual with a decay of 0.9, beside which the
    optimizer may have a momentum (see efsignsgd); means per variable by default, since columns are
    many in narrow matrices; 4 bytes for a mean; the aggregate is not quantised again.
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

    def encode(self, xs, residuals, multiplier, ctx):
        made = scaled_sign_list(xs, residuals, multiplier, self._cells)
        low, high = made.levels
        return Encoded(
            {"signs": made.words, "low": low, "high": high}, made.residuals_out, made.finite
        )

    def decode(self, payload, factor, ctx):
        parts = payload["signs"], [payload["low"], payload["high"]]
        return sum_scaled_sign_list(*parts, ctx.shapes, factor, self._cells)
