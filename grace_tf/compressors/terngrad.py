"""`terngrad`: ternary gradients, −s, 0 or s, drawn at random."""

from __future__ import annotations

import tensorflow as tf

from grace_tf.core.hyperparameters import check_choice, check_integer, check_number
from grace_tf.core.list_compressor import Encoded, ListCompressor
from grace_tf.core.registry import register
from grace_tf.core.rounds import Max, Outcome, Sum, fuses
from grace_tf.memories.none import NoMemory
from grace_tf.ops import dispatch
from grace_tf.ops.backend.words_as_floats import one_row
from grace_tf.ops.codes import ternary


@register(
    "terngrad",
    family="quantisation",
    paper="arXiv:1705.07878",
    memory="none",
    examples=(
        "terngrad:clip=none",
        "terngrad:clip=none,packing=bits",
        "terngrad:shared=true",
        "terngrad:shared=true,clip=none,workers=3",
    ),
)
class TernGrad(ListCompressor):
    """Sends −1, 0 or 1 and a scale: C(x) = s·sign(x)·b, b = 1 with probability |x̂|/s, else 0.

    x̂ is x clipped to ±clip·σ, σ the standard deviation of the variable's elements, and
    s = max |x̂|, so that C(x) is x̂ on average; `clip=none` clips nothing, and C is unbiased,
    to 2^-17 of s, as 16 random bits decide over a digit.  Then E‖C(x) − x‖² ≤ (√n − 1)/2·‖x‖²; with
    a shared scale, which may be another worker's, it has no bound.
    With `shared` all workers use the largest of their scales, found by a first round.  Their
    digits are then summed on the way, in fields wide enough for `workers` of them.
    Shapes: any float32 tensor.
    Wire: trits int32[⌈n/20⌉] (`packing="trits"`) or int32[⌈n/16⌉] (`packing="bits"`) and
    scale float32[1], gathered: n/5 or n/4 bytes, and 4.
    With `shared` two rounds of all-reduce: scale float32[1] and sums int32[⌈n/⌊32/f⌋⌉], where
    fields have f = 1 + ⌈log2(workers + 1)⌉ bits: n/2 bytes for 4 to 7 workers, and 4.
    Raises: ValueError or TypeError for a clip that is not positive, another packing, or workers
    outside 1 … 32767; ValueError at the first step of more workers than fields have room for.
    Paper: Wen et al. 2017, TernGrad, section 3: equations 1 to 3, gradient clipping and scaler
    sharing.
    Differs: a variable whose elements are equal, so that σ is 0, is not clipped; the scale may be
    each worker's own; with scales shared the server's sums travel in fixed fields.
    """

    clip: float | None = 2.5
    packing: str = "trits"
    shared: bool = False
    workers: int = 7

    homogeneous = True

    def __post_init__(self):
        if self.clip is not None:
            check_number("terngrad", "clip", self.clip)
            if not self.clip > 0:
                raise ValueError(f"terngrad: clip is positive or none, not {self.clip!r}.")
        check_choice("terngrad", "packing", self.packing, ("trits", "bits"))
        check_choice("terngrad", "shared", self.shared, (False, True))
        check_integer("terngrad", "workers", self.workers, 1, 2**15 - 1)

    unbiased = property(lambda self: self.clip is None)
    one_round = property(lambda self: not self.shared)
    elementwise = property(lambda self: not self.shared)

    @property
    def _bits(self):
        """The number of bits of a field; None for trits."""
        if self.shared:
            return 1 + self.workers.bit_length()
        return 2 if self.packing == "bits" else None

    def wire(self, spec):
        words = ternary.word_count(spec.shape.num_elements(), self._bits)
        digits = tf.TensorSpec([words], tf.int32)
        scale = tf.TensorSpec([1], tf.float32)
        return (
            {"scale": scale, "sums": digits} if self.shared else {"trits": digits, "scale": scale}
        )

    def relative_bound(self, spec):
        if self.clip is not None or self.shared:
            return None
        # The error is Σ |x|·(s − |x|) / ‖x‖².  It is largest where one element is s and all others
        # are s/(1 + √n).
        return (spec.shape.num_elements() ** 0.5 - 1) / 2

    def encode(self, xs, residuals, multiplier, ctx):
        scales, finite = ternary.scales_of(xs, multiplier, self.clip)
        words = ternary.encode(xs, multiplier, scales, scales, self._bits, ctx.list_key())
        return Encoded({"trits": words, "scale": scales}, None, finite)

    def decode(self, payload, factor, ctx):
        return self._decode(payload["trits"], payload["scale"], factor, ctx)

    def _decode(self, words, scales, factor, ctx):
        return ternary.decode(words, scales, ctx.shapes, factor, self._bits)

    def _summed(self, xs, multiplier, ctx):
        """The two rounds with a shared scale: returns (own words, sums, scales), rows of one."""
        if ctx.size > self.workers:
            raise ValueError(
                f"terngrad: its sums have room for workers={self.workers}, but there are "
                f"{ctx.size} workers; set workers={ctx.size} or more."
            )
        own, finite = ternary.scales_of(xs, multiplier, self.clip)
        (first,) = yield Max([{"scale": own}], finite)
        scales = first["scale"]
        words = ternary.encode(xs, multiplier, own, scales, self._bits, ctx.list_key())
        (second,) = yield Sum([{"sums": words}])
        rows = one_row({"own": words, "sums": second["sums"], "scales": scales})
        return rows["own"], rows["sums"], rows["scales"]

    def rounds(self, xs, states, ctx):
        if not self.shared:
            return (yield from super().rounds(xs, states, ctx))
        words, sums, scales = yield from self._summed(xs, 1.0, ctx)
        totals, _ = self._decode(sums, scales, 1.0, ctx)
        sent = self._decode(words, scales, 1.0, ctx)[0] if ctx.needs_sent else None
        return totals, sent, list(states)


@fuses(TernGrad, NoMemory, when=lambda compressor, xs: compressor.shared and dispatch.runs_here(xs))
def in_two_passes(compressor, memory, xs, memories, states, ctx):
    """The form with a shared scale: reads the gradients once for scales and once for digits."""
    _, words, scales = yield from compressor._summed(xs, ctx.multiplier, ctx)
    means, finite = compressor._decode(words, scales, 1 / ctx.size, ctx)
    return Outcome(means, memories, states, finite)
