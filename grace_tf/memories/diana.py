"""`diana`: sends differences to slowly learnt estimates, for unbiased compressors."""

import tensorflow as tf

from grace_tf.core.hyperparameters import check_fraction
from grace_tf.core.memory import Memory
from grace_tf.core.registry import register
from grace_tf.ops import weighted_sum


@register("diana", family="estimates", paper="arXiv:1901.09269")
class DIANA(Memory):
    """Sends differences to an estimate: c = C(x − h), aggregate H + mean c, then h ← h + α·c and
    H ← H + α·mean c.

    h is this worker's estimate of its own gradient; H is the mean of all workers' estimates, which
    every worker holds alike.  Both start from zero.  The aggregate is unbiased, as C is, and its
    variance vanishes as the estimates reach the gradients: with whole batches the training
    converges to the optimum itself, with data that differ between workers too.  `alpha` is α, at
    most 1 / (1 + ω) for a compressor with E‖C(x) − x‖² ≤ ω·‖x‖²; the default serves ω up to 3.
    State: own (h) and server (H), float32, the variable's shape.  When the number of workers
    changes, every worker's h becomes the mean of all of them, which is H.  Where some workers have
    a restored state and others have not, all start from zero.
    Raises: TypeError or ValueError for an α outside (0, 1]; ValueError (at construction of the
    door) for a compressor that is not unbiased.
    Paper: Mishchenko, Gorbunov, Takáč, Richtárik 2019, DIANA, algorithm 1.
    Differs: no momentum and no proximal step, which are the optimizer's.
    """

    alpha: float = 0.25

    requires_unbiased = True
    alike = ("server",)

    def __post_init__(self):
        check_fraction("diana", "alpha", self.alpha)

    def init_state(self, spec):
        return {name: tf.zeros(spec.shape, tf.float32) for name in ("own", "server")}

    def compensate(self, x, state, ctx):
        return x - state["own"], None

    def settle(self, carry, sent, total, state, ctx):
        own, server = state["own"] + self.alpha * sent, state["server"] + self.alpha * total
        return state["server"] + total, {"own": own, "server": server}

    def compensate_list(self, xs, states, ctx):
        own = [state["own"] for state in states]
        return weighted_sum.mix_list(xs, 1.0, own, -1.0), [None] * len(xs)

    def settle_list(self, carries, sent, totals, states, ctx):
        own, server = ([state[name] for state in states] for name in ("own", "server"))
        own = weighted_sum.mix_list(sent, self.alpha, own, 1.0)
        learnt = weighted_sum.mix_list(totals, self.alpha, server, 1.0)
        aggregates = weighted_sum.mix_list(totals, 1.0, server, 1.0)
        return aggregates, [{"own": h, "server": H} for h, H in zip(own, learnt)]
