"""Signs of a moving average, and a majority vote."""

import tensorflow as tf

from grace_tf.compressors.signsgd import SignSGD
from grace_tf.core.registry import recipe
from grace_tf.core.rounds import Gather, Outcome, fuses
from grace_tf.memories.momentum import Momentum
from grace_tf.ops import lists
from grace_tf.ops.scaled_signs import momentum_sign_list


@recipe(
    "signum",
    family="quantisation",
    paper="arXiv:1802.04434",
    examples=("signum:momentum=0.5",),
)
def signum(momentum: float = 0.9):
    """Sends the signs of a moving average: m ← β·m + (1 − β)·x, C(m) = ±1, sign(0) = +1.

    It is signsgd with the memory "momentum", β being `momentum`; m begins at 0 and stays with its
    worker.  The aggregate is the majority's vote, 0 for a tie: a consensus, never divided by the
    number of workers, so the learning rate is the step size.
    Shapes: any float32 tensor.
    Wire: signs int32[⌈n/32⌉], gathered: n/8 bytes, rounded up to a word.
    State: momentum float32 per variable, each worker's own.
    Raises: TypeError for a momentum that is no number, ValueError for one outside [0, 1).
    Paper: Bernstein et al. 2018, signSGD, algorithm 3 (Signum) with the vote of algorithm 2.
    Differs: a tied vote gives 0 (the paper leaves it open); m is not corrected for its beginning
    at 0, which changes no sign.  The optimizer's own momentum is to be 0.
    """
    return SignSGD(), Momentum(momentum)


@fuses(SignSGD, Momentum, when=lambda compressor, xs: lists.runs_here(xs))
def in_one_pass(compressor, memory, xs, memories, states, ctx):
    """The averages, their signs and the flag from one read; every vote is written once."""
    momenta = [state["momentum"] for state in memories]
    words, averages, finite = momentum_sign_list(xs, momenta, ctx.multiplier, memory.beta)
    (reply,) = yield Gather([{"signs": words}], finite)
    shapes = [spec.shape for spec in ctx.specs]
    votes = lists.vote_list(reply["signs"], shapes, tf.constant(1.0))
    kept = [{"momentum": average} for average in averages]
    return Outcome(votes, kept, states, tf.constant(True))  # a vote is -1, 0 or 1
