"""What the memories with error feedback share: the leaf, its form between steps, its resets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from grace_tf.core.context import Context
from grace_tf.core.hyperparameters import check_choice, check_integer
from grace_tf.core.list_compressor import residuals_of, settled
from grace_tf.core.memory import Memory
from grace_tf.ops import narrow_storage


class ErrorFeedback(Memory):
    """Base class: x' = x + keeps·e, with one leaf e that subclasses settle.

    A subclass has the fields `dtype` and `reset`, and gives `settle` for one variable.  Its fused
    forms are those of `residual`, after which `with_resets` finishes the states.
    """

    dtype: str
    reset: int | None

    requires_nonexpansive = True

    def _check(self, name: str) -> None:
        check_choice(name, "dtype", self.dtype, ("float32", "bf16", "int8"))
        if self.reset is not None:
            check_integer(name, "reset", self.reset, 1)

    def init_state(self, spec):
        return {"residual": tf.zeros(spec.shape, tf.float32)}

    def compensate(self, x, state, ctx):
        kept = state["residual"] if self.keeps == 1 else state["residual"] * self.keeps
        compensated = x + kept
        return compensated, compensated

    def unless_reset(self, residual: tf.Tensor, ctx: Context) -> tf.Tensor:
        """The residual, or zeros in the steps that end with a reset.

        What the second of two hops loses in such a step is taken back after it, and stays.
        """
        if self.reset is None:
            return residual
        return tf.where(_resets(self.reset, ctx), tf.zeros_like(residual), residual)

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


def with_resets(
    memory: ErrorFeedback, finished: Callable[[], Sequence[tf.Tensor]], ctx: Context
) -> list[dict[str, tf.Tensor]]:
    """The next states, from a function that computes the residuals of a lane group.

    In the steps that end with a reset it is not run, and the states are zeros.
    """
    if memory.reset is None:
        return [{"residual": each} for each in finished()]

    def zeros():
        return [tf.zeros(shape) for shape in ctx.shapes]

    residuals = tf.cond(_resets(memory.reset, ctx), zeros, lambda: [*finished()])
    shaped = [tf.ensure_shape(each, shape) for each, shape in zip(residuals, ctx.shapes)]
    return [{"residual": each} for each in shaped]


def _resets(reset: int, ctx: Context) -> tf.Tensor:
    """Whether this step is the last before the residual starts anew."""
    return tf.equal((tf.cast(ctx.step, tf.int64) + 1) % reset, 0)
