"""`ecq`: error feedback for unbiased quantisers, by a part of an error that decays."""

from __future__ import annotations

import tensorflow as tf

from grace_tf.core.hyperparameters import check_fraction
from grace_tf.core.memory import Memory
from grace_tf.core.registry import register
from grace_tf.ops import weighted_sum

# Some bounds grow with the size of the variable, and some hold for matrices only.  So the condition
# is checked for a large matrix.
_JUDGED = tf.TensorSpec([1024, 1024], tf.float32)


@register("ecq", family="error feedback", paper="arXiv:1806.08054", examples=("ecq:alpha=0.2",))
class ECQ(Memory):
    """Adds a part of the accumulated error to the gradient: x' = x + α·h, h ← β·h + (x − C(x')).

    `alpha` is α, `beta` is β.  An unbiased quantiser may send more error than gradient, so that a
    whole residual would grow without bound.  With E‖C(x) − x‖² ≤ γ·‖x‖² the expected square of h is
    multiplied by at most α²γ + (β − α)² from step to step, beside what a gradient adds, so h stays
    bounded where that is below 1.
    State: residual, which is h, float32, the variable's shape.  When the number of workers changes,
    it keeps its mean.
    Raises: TypeError or ValueError for an α or β outside (0, 1]; ValueError (at construction of the
    door) for a compressor that is not unbiased, that gives no `relative_bound`, or whose γ, for a
    matrix of 1024 × 1024 elements, breaks α²γ + (β − α)² < 1.  A larger variable is not checked:
    where the bound grows with it, choose a smaller α.
    Paper: Wu, Huang, Huang, Zhang 2018, Error Compensated Quantized SGD and its Applications to
    Large-scale Distributed Optimization.
    Differs: α and β are the same in all steps; the condition is checked.
    """

    alpha: float = 0.1
    beta: float = 0.9

    requires_unbiased = True
    takes_back = True
    by_rows = True

    def __post_init__(self):
        check_fraction("ecq", "alpha", self.alpha)
        check_fraction("ecq", "beta", self.beta)

    def check(self, compressor):
        bound = compressor.relative_bound(_JUDGED)
        if bound is None:
            raise ValueError(
                f"The memory 'ecq' needs the bound of a compressor's error, and {compressor} gives "
                'none as relative_bound: use memory="none".'
            )
        factor = self.alpha**2 * bound + (self.beta - self.alpha) ** 2
        if factor >= 1:
            raise ValueError(
                f"The memory 'ecq' would grow without bound: with {compressor} the squares of its "
                f"errors, up to {bound:.3g} times the gradient's, make alpha²·{bound:.3g} + "
                f"(beta − alpha)² = {factor:.3g}, which must be below 1; give it a smaller alpha, "
                "or the compressor more bits or smaller blocks."
            )

    def init_state(self, spec):
        return {"residual": tf.zeros(spec.shape, tf.float32)}

    def compensate(self, x, state, ctx):
        return self.alpha * state["residual"] + x, x

    def settle(self, carry, sent, total, state, ctx):
        return total, {"residual": self.beta * state["residual"] + (carry - sent)}

    def take_back(self, state, lost):
        return {**state, "residual": state["residual"] + lost}

    def compensate_list(self, xs, states, ctx):
        errors = [state["residual"] for state in states]
        return weighted_sum.mix_list(xs, 1.0, errors, self.alpha), list(xs)

    def settle_list(self, carries, sent, totals, states, ctx):
        errors = weighted_sum.mix_list(carries, 1.0, sent, -1.0)
        old = [state["residual"] for state in states]
        kept = weighted_sum.mix_list(errors, 1.0, old, self.beta)
        return list(totals), [{"residual": each} for each in kept]
