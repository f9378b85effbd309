"""`variance`: accumulates gradients, and sends sums that are large compared to their variance."""

from __future__ import annotations

import tensorflow as tf

from grace_tf.core.hyperparameters import check_fraction, check_number
from grace_tf.core.memory import Memory
from grace_tf.core.registry import register


@register("variance", family="error feedback", paper="arXiv:1802.06058")
class Variance(Memory):
    """Holds elements back until they are large compared to their variance: r ← r + x,
    v ← v + x²; x' = r where r² > α·v, else 0.

    Where an element is sent, v ← 0 and r keeps what was not sent; elsewhere v ← ζ·v.  `alpha` is α,
    `decay` is ζ.  The variance is over steps: each gradient of this worker is one
    sample, also where the optimizer has averaged it over `gradient_accumulation_steps`, since only
    the average comes here.  Under a strategy every replica is a worker, so what N replicas compute
    in a step counts as N samples, one in each of N states.
    State: r and v, float32, the variable's shape.  The sum of the gradients is that of what was
    sent, plus r, up to rounding.  An element of one gradient alone is not sent (r² = v); one that
    keeps its sign is sent after about α steps.
    Raises: TypeError or ValueError for an alpha below 1 or a decay outside (0, 1]; ValueError (at
    construction of the door) for a compressor that is not nonexpansive.
    Paper: Tsuzuku, Imachi, Akiba 2018, Variance-based Gradient Compression, algorithm 1.
    Differs: the paper's samples are the gradients of single examples, which Keras does not compute.
    """

    alpha: float = 1.5
    decay: float = 0.999

    requires_nonexpansive = True
    needs_every_row = True
    forgets = True  # a residual waits until it stands out

    def __post_init__(self):
        check_number("variance", "alpha", self.alpha)
        check_fraction("variance", "decay", self.decay)
        if self.alpha < 1:
            raise ValueError(f"variance: alpha is at least 1, not {self.alpha!r}.")

    def init_state(self, spec):
        return {name: tf.zeros(spec.shape, tf.float32) for name in ("r", "v")}

    def compensate(self, x, state, ctx):
        r, v = state["r"] + x, state["v"] + x * x
        # What is not finite, or has a square that is not, is not held back but seen.
        held = (r * r <= self.alpha * v) & tf.math.is_finite(v)
        return tf.where(held, 0.0, r), (r, v)

    def settle(self, carry, sent, total, state, ctx):
        r, v = carry
        return total, {"r": r - sent, "v": tf.where(sent == 0, self.decay * v, 0.0)}
