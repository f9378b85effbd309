"""`ef21`: error feedback by estimates that follow the gradients."""

import tensorflow as tf

from grace_tf.core.memory import Memory
from grace_tf.core.registry import register
from grace_tf.ops import weighted_sum


@register("ef21", family="estimates", paper="arXiv:2106.05203")
class EF21(Memory):
    """Sends differences to an estimate: c = C(x − h), h ← h + c, H ← H + mean c, aggregate H.

    h is this worker's estimate of its own gradient; H is the mean of all workers' estimates, which
    every worker holds alike.  Both start from zero.  The aggregate lags behind the gradients as the
    estimates do.  With whole batches, also where the workers' data differ, the estimates converge
    to the gradients, and the training to a stationary point, at the rate of gradient descent.
    State: own (h) and server (H), float32, the variable's shape.  When the number of workers
    changes, every worker's h becomes the mean of all of them, which is H.  Where some workers have
    a restored state and others have not, all start from zero.
    Raises: ValueError (at construction of the door) for a compressor that is not nonexpansive,
    since the estimates could then run away from the gradients.
    Paper: Richtárik, Sokolov, Fatkhullin 2021, EF21, algorithm 2.
    Differs: h starts from zero, so that the first step sends C(x), as the paper allows.
    """

    requires_nonexpansive = True
    alike = ("server",)

    def init_state(self, spec):
        return {name: tf.zeros(spec.shape, tf.float32) for name in ("own", "server")}

    def compensate(self, x, state, ctx):
        return x - state["own"], None

    def settle(self, carry, sent, total, state, ctx):
        server = state["server"] + total
        return server, {"own": state["own"] + sent, "server": server}

    def compensate_list(self, xs, states, ctx):
        own = [state["own"] for state in states]
        return weighted_sum.mix_list(xs, 1.0, own, -1.0), [None] * len(xs)

    def settle_list(self, carries, sent, totals, states, ctx):
        own, server = ([state[name] for state in states] for name in ("own", "server"))
        own = weighted_sum.mix_list(sent, 1.0, own, 1.0)
        server = weighted_sum.mix_list(totals, 1.0, server, 1.0)
        return server, [{"own": h, "server": H} for h, H in zip(own, server)]
