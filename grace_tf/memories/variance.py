"""`variance`: accumulates gradients, and sends sums that are large compared to their variance."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from grace_tf.core.hyperparameters import check_fraction, check_integer, check_number
from grace_tf.core.memory import Memory
from grace_tf.core.registry import register


@register("variance", family="error feedback", paper="arXiv:1802.06058")
class Variance(Memory):
    """Holds elements back until they are large compared to their variance: r ← r + x,
    v ← v + Σ (xᵢ/k)²; x' = r where r² > α·v, else 0.

    Where an element is sent, v ← 0 and r keeps what was not sent; elsewhere v ← ζ·v.  `alpha` is α,
    `decay` is ζ.  x is the mean of the gradients xᵢ of k = `micro_batches` micro-batches.  `wrap`
    sets k to the optimizer's `gradient_accumulation_steps`, so the variance is then over
    micro-batches.  Elsewhere k is 1, and the variance is over steps: with an Aggregator; where
    Keras clips x, since the xᵢ are not clipped; and with `hierarchical`, where x is a host's mean.
    `grace_tf.explain` shows a k above 1.  Under a strategy every replica is a worker, so what N
    replicas compute in a step counts as N samples, one in each of N states.
    State: r and v, float32, the variable's shape; with k > 1 also s, the sum over the micro-batches
    so far.  The sum of the gradients is that of what was sent, plus r, up to rounding.  An element
    of one gradient alone is not sent (r² = v); one that keeps its sign is sent after about α
    samples.
    Raises: TypeError or ValueError for an alpha below 1, a decay outside (0, 1], or micro_batches
    that the optimizer does not have; ValueError (at construction of the door) for a compressor that
    is not nonexpansive.
    Paper: Tsuzuku, Imachi, Akiba 2018, Variance-based Gradient Compression, algorithm 1.
    Differs: the paper's samples are the gradients of single examples, which Keras does not compute.
    """

    alpha: float = 1.5
    decay: float = 0.999
    micro_batches: int = 1

    requires_nonexpansive = True
    needs_every_row = True
    forgets = True  # a residual waits until it stands out

    def __post_init__(self):
        check_number("variance", "alpha", self.alpha)
        check_fraction("variance", "decay", self.decay)
        check_integer("variance", "micro_batches", self.micro_batches, 1)
        if self.alpha < 1:
            raise ValueError(f"variance: alpha is at least 1, not {self.alpha!r}.")

    def of_micro_batches(self, count):
        if self.micro_batches not in (1, count):
            raise ValueError(
                f"The memory variance has micro_batches={self.micro_batches}, but here it sees "
                f"{f'{count} before' if count > 1 else 'the mean alone in'} each step: leave "
                "micro_batches out, since grace_tf.wrap sets it from the optimizer's "
                "gradient_accumulation_steps."
            )
        return dataclasses.replace(self, micro_batches=count)

    def init_state(self, spec):
        leaves = ("r", "v", "s") if self.micro_batches > 1 else ("r", "v")
        return {leaf: tf.zeros(spec.shape, tf.float32) for leaf in leaves}

    def observe(self, x, state, first):
        return {"s": x * x + tf.where(first, 0.0, state["s"])}

    def compensate(self, x, state, ctx):
        squares = state["s"] if self.micro_batches > 1 else x * x
        r, v = state["r"] + x, state["v"] + squares
        # What is not finite, or has a square that is not, is not held back but seen.
        held = (r * r <= self.alpha * v) & tf.math.is_finite(v)
        return tf.where(held, 0.0, r), (r, v)

    def settle(self, carry, sent, total, state, ctx):
        r, v = carry
        nexts = {"r": r - sent, "v": tf.where(sent == 0, self.decay * v, 0.0)}
        return total, nexts | ({"s": tf.zeros_like(v)} if self.micro_batches > 1 else {})
