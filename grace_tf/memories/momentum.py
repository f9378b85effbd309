"""`momentum`: a moving average of each worker's gradients."""

import tensorflow as tf

from grace_tf.core.hyperparameters import check_number
from grace_tf.core.memory import Memory
from grace_tf.core.registry import register


@register("momentum", family="momentum", paper="arXiv:1802.04434")
class Momentum(Memory):
    """Compresses the moving average of the gradients: m ← β·m + (1 − β)·x, from m = 0.

    State: momentum float32, the lane's shape.  The error of its compression is not stored.
    Raises: TypeError for a β that is no number, ValueError for one outside [0, 1); ValueError (at
    construction of the door) for an optimizer with a momentum of its own, unless β is 0.
    Paper: Bernstein et al. 2018, arXiv:1802.04434, algorithm 2 (Signum).
    Differs: none.  Variables that travel uncompressed have no moving average, unless
      another stage of a schedule compresses them.
    """

    beta: float = 0.9

    needs_sent = False
    needs_every_row = True
    has_momentum = property(lambda self: self.beta != 0)
    momentum_field = "beta"

    def __post_init__(self):
        check_number("momentum", "beta", self.beta)
        if not 0 <= self.beta < 1:
            raise ValueError(f"momentum: beta is a number in [0, 1), not {self.beta!r}.")

    def init_state(self, spec):
        return {"momentum": tf.zeros(spec.shape, tf.float32)}

    def compensate(self, x, state, ctx):
        average = state["momentum"] * self.beta + x * (1 - self.beta)
        return average, average

    def settle(self, carry, sent, total, state, ctx):
        return total, {"momentum": carry}
