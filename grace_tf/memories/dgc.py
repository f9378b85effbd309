"""`dgc`: momentum correction, masking and local clipping, for gradients that are sent late."""

from __future__ import annotations

import tensorflow as tf

from grace_tf.core.hyperparameters import check_choice, check_number
from grace_tf.core.memory import Memory
from grace_tf.core.registry import register
from grace_tf.ops.sampled_top_k import Momentum, clip_factor


@register("dgc", family="momentum", paper="arXiv:1712.01887")
class MomentumCorrection(Memory):
    """Accumulates this worker's momentum until it is sent: u ← m·u + g, v ← v + u; compresses v.

    With `nesterov` v ← v + g + m·u, with the new u.  Where an element is sent, v keeps what was not
    sent (0 for selections), and u becomes 0 (momentum factor masking), unless `masking` is off.
    With `clip`, each variable's gradient is first scaled down to a norm of at most clip·N^-1/2.
    Variables that travel dense have their momentum after the mean: u ← m·u + ḡ, and the optimizer
    gets u, or with `nesterov` m·u + ḡ.  There ḡ is scaled down to a norm of at most `clip`.
    State: u and v float32, the lane's shape; only u where it travels dense.  Without masking, the
    sum of u over all steps = what was sent + v.
    Raises: ValueError for a momentum outside [0, 1), nesterov without momentum, and a clip that is
    not positive; at construction of the door for a compressor that is not nonexpansive and, where
    the momentum is not 0, for an optimizer with a momentum of its own.
    Paper: Lin et al. 2018, Deep Gradient Compression, arXiv:1712.01887, sections 3.2 (momentum
    correction, local gradient clipping) and 3.3 (momentum factor masking).
    Differs: the norm is that of one variable's gradient, as in Keras' `clipnorm`, not of all
    gradients of the worker: the last layers' gradients are sent before the first layers' are
    known.  Weight decay never enters the momentum: Keras applies `weight_decay=` to the weights
    themselves.  A regularizer's penalty is part of the gradient.
    """

    momentum: float = 0.9
    nesterov: bool = False
    masking: bool = True
    clip: float | None = None

    requires_nonexpansive = True
    claims_dense = True
    needs_every_row = True

    def __post_init__(self):
        check_number("dgc", "momentum", self.momentum)
        check_choice("dgc", "nesterov", self.nesterov, (False, True))
        check_choice("dgc", "masking", self.masking, (False, True))
        if not 0 <= self.momentum < 1:
            raise ValueError(f"dgc: momentum is from 0 to below 1, not {self.momentum!r}.")
        if self.nesterov and not self.momentum:
            raise ValueError("dgc: nesterov is a kind of momentum; momentum is 0.")
        if self.clip is not None:
            check_number("dgc", "clip", self.clip)
            if self.clip <= 0:
                raise ValueError(f"dgc: clip is above 0 or none, not {self.clip!r}.")

    @property
    def has_momentum(self):
        return self.momentum != 0

    def init_state(self, spec):
        return {name: tf.zeros(spec.shape, tf.float32) for name in ("u", "v")}

    def init_dense_state(self, spec):
        return {"u": tf.zeros(spec.shape, tf.float32)}

    def compensate(self, x, state, ctx):
        if ctx.dense:
            return x, None
        x = self.clipped(x, ctx.size)
        u, velocity = self._advanced(x, state["u"], state["v"])
        return velocity, (u, velocity)

    def settle(self, carry, sent, total, state, ctx):
        if ctx.dense:
            total = self.clipped(total, 1)
            u, velocity = self._advanced(total, state["u"], None)
            return velocity, {"u": u}
        u, velocity = carry
        if self.masking:
            u = tf.where(sent == 0, u, 0.0)
        return total, {"u": u, "v": velocity - sent}

    def _advanced(self, x, u, v):
        """The next u and the next v; where v is None, the update alone takes its place."""
        u = self.momentum * u + x
        if not self.nesterov:
            return u, u if v is None else v + u
        # Written as a difference, since TensorFlow's graphs may reorder a sum of three tensors.
        return u, (x if v is None else v + x) - -self.momentum * u

    def clipped(self, x, size):
        """x with a norm of at most clip·size^-1/2."""
        if self.clip is None:
            return x
        limit = self.clip * size**-0.5
        return x * clip_factor(tf.reshape(x, [-1]), limit)

    def momentum_of(self, memories, size):
        """The `Momentum` argument of `sampled_k_list`: this memory and a group's states."""
        limit = None if self.clip is None else self.clip * size**-0.5
        states = [state["u"] for state in memories]
        return Momentum(states, self.momentum, self.nesterov, self.masking, limit)
