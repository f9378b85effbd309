"""`residual`: error feedback, which adds to the next gradient what was not sent."""

import tensorflow as tf

from grace_tf.core.hyperparameters import check_choice
from grace_tf.core.list_compressor import residuals_of, settled
from grace_tf.core.memory import Memory
from grace_tf.core.registry import register
from grace_tf.ops import narrow_storage


@register(
    "residual",
    family="error feedback",
    paper="arXiv:1901.09847",
    examples=("residual:dtype=bf16", "residual:dtype=int8"),
)
class Residual(Memory):
    """Adds what was not sent to the next gradient: x' = x + e, e ← x' − sent.

    `dtype` is the form of e between steps.  "bf16" and "int8" round it at random, independently for
    each worker and element.  The stored ê has the expectation e, so nothing is lost on average, and

        bf16  |ê − e| < 2^-7·|e|     variance ≤ 2^-16·e²
        int8  |ê − e| ≤ c / 127      variance ≤ (c / 254)², c the largest |e| of a block of 256

    up to float32 rounding.  (A bf16 that would round up to infinity is truncated; an int8 block
    with c below 2^-110 becomes zero.)  So the sum of the gradients is the sum of what was sent,
    plus ê, plus a sum of unbiased errors.  A step itself computes in float32.
    State: residual, between steps float32 of the variable's shape; uint16, the bits of bfloat16; or
    int8 [8·⌈n/32⌉ + ⌈n/256⌉, 4], codes and scales.  A state of one dtype loads into any other.
    compensated = sent + residual, exactly for selections.
    Raises: ValueError for another dtype; ValueError (at construction of the door) for a compressor
    that is not nonexpansive, since the residual could then grow without bound.
    Paper: Seide et al. 2014, 1-Bit SGD; Karimireddy et al. 2019, arXiv:1901.09847, algorithm 2.
    Differs: none with float32.
    """

    dtype: str = "float32"

    requires_nonexpansive = True
    takes_back = True
    in_encode = True
    by_rows = property(lambda self: self.dtype == "float32")

    def __post_init__(self):
        check_choice("residual", "dtype", self.dtype, ("float32", "bf16", "int8"))

    def init_state(self, spec):
        return {"residual": tf.zeros(spec.shape, tf.float32)}

    def compensate(self, x, state, ctx):
        compensated = x + state["residual"]
        return compensated, compensated

    def settle(self, carry, sent, total, state, ctx):
        return total, {"residual": carry - sent}

    def take_back(self, state, lost):
        return {**state, "residual": state["residual"] + lost}

    def store(self, states, ctx):
        if self.dtype == "float32":
            return states
        store = (
            narrow_storage.to_halves_list if self.dtype == "bf16" else narrow_storage.to_bytes_list
        )
        return settled(states, store(residuals_of(states), ctx.list_key()))

    def load(self, stored, specs):
        (dtype,) = {state["residual"].dtype for state in stored}
        if dtype == tf.uint16:
            return settled(stored, narrow_storage.from_halves_list(residuals_of(stored)))
        if dtype == tf.int8:
            shapes = [spec.shape for spec in specs]
            return settled(stored, narrow_storage.from_bytes_list(residuals_of(stored), shapes))
        return stored
