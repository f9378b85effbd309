"""`signsgd`: one bit an element, and a majority vote."""

import tensorflow as tf

from grace_tf import ops
from grace_tf.core.list_compressor import Encoded, ListCompressor
from grace_tf.core.registry import register
from grace_tf.core.rounds import Gather, Outcome, fuses
from grace_tf.memories.momentum import Momentum
from grace_tf.ops import dispatch
from grace_tf.ops.backend.words_as_floats import carried, one_row
from grace_tf.ops.scaled_signs import momentum_sign_list
from grace_tf.ops.signs import sign_list, vote_list


@register("signsgd", family="quantisation", paper="arXiv:1802.04434", memory="none")
class SignSGD(ListCompressor):
    """Sends signs; the aggregate is the sign of their sum over workers: C(x) = ±1, sign(0) = +1.

    Shapes: any float32 tensor; the aggregate is in {−1, 0, +1}, 0 for a tied vote.  It is a
    consensus: it is neither summed nor divided by the number of workers, so the learning rate is
    the step size: begin with SGD(0.001) without momentum.  SGD(0.02, momentum=0.9) learns nothing.
    Wire: signs int32[⌈n/32⌉], gathered: n/8 bytes, rounded up to a word.
    Paper: Bernstein et al. 2018, signSGD, algorithm 3 (majority vote).
    Differs: a tied vote gives 0 (the paper leaves it open).  A residual is refused: signs are no
    contraction, and error feedback diverges with them.
    """

    aggregates = "consensus"
    block = 32
    recompressible = True
    begin_with_rate = 0.001

    def wire(self, spec):
        return {"signs": tf.TensorSpec([ops.packed_words(spec.shape.num_elements(), 1)], tf.int32)}

    def encode(self, xs, residuals, multiplier, ctx):
        words, finite = sign_list(xs, multiplier)
        return Encoded({"signs": words}, None, finite)

    def decode(self, payload, factor, ctx):
        votes = vote_list(payload["signs"], ctx.shapes, factor)
        return votes, tf.constant(True)  # a vote is -1, 0 or 1

    def recompress_list(self, totals, ctx):
        payload = self.compress_list(totals, ctx)
        if ctx.size % 2:
            return one_row(payload)
        # A tied vote needs two rows: +1 in the first and −1 in the second add up to 0.
        above = self.compress_list([total - 0.5 for total in totals], ctx)["signs"]
        return {"signs": carried(tf.stack, [payload["signs"], above])}


@fuses(SignSGD, Momentum, when=lambda compressor, xs: dispatch.runs_here(xs))
def averaged_in_one_pass(compressor, memory, xs, memories, states, ctx):
    """Computes averages, signs and flag in one read of the gradients; writes every vote once."""
    momenta = [state["momentum"] for state in memories]
    words, averages, finite = momentum_sign_list(xs, momenta, ctx.multiplier, memory.beta)
    (reply,) = yield Gather([{"signs": words}], finite)
    votes, finite = compressor.decode(reply, 1.0, ctx)
    next_memories = [{"momentum": average} for average in averages]
    return Outcome(votes, next_memories, states, finite)
