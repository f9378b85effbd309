"""`ListCompressor`: compressors that encode and decode all tensors of a lane group in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from grace_tf.core.compressor import Compressor
from grace_tf.core.context import Context
from grace_tf.core.rounds import Gather, Outcome, Payload, Rounds, Sum
from grace_tf.ops.backend.words_as_floats import one_row

_ACTIONS = {"compress", "decompress", "aggregate"}


class Encoded(NamedTuple):
    """The result of `encode` for a lane group: its payload, the next residuals, and the flag."""

    payload: Payload
    residuals: list[tf.Tensor] | None  # None where `encode` got none
    finite: tf.Tensor  # a bool scalar: whether everything that was compressed is finite


class ListCompressor(Compressor):
    """A compressor of one round whose actions all follow from `wire`, `encode` and `decode`.

    The actions on one tensor run on a list of one.  With memories of the trait `in_encode` one call
    of `encode` adds the residuals, compresses, and computes the next residuals.  Payloads are
    all-reduced where the method has the trait `commutes_with_sum`, and gathered elsewhere.
    """

    encodes = False  # whether `encode` is the whole method: set for classes that define it

    def encode(
        self,
        xs: Sequence[tf.Tensor],
        residuals: Sequence[tf.Tensor] | None,
        multiplier: float,
        ctx: Context,
    ) -> Encoded:
        """Encodes the tensors `xs[i] * multiplier + residuals[i]` of one worker.

        Args:
          xs: float32, with the shapes of `ctx.specs`.
          residuals: like `xs`, or None for none.
          multiplier: a number, 1.0 for no product.
          ctx: the sender's `Context` of the lane group.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how it encodes.")

    def decode(
        self, payload: Payload, factor: float, ctx: Context
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Decodes payloads to their sums (or votes) times a factor, and a flag.

        Args:
          payload: gathered, every part `[rows, n]`, a row from each worker; with
            `commutes_with_sum` the sum, every part `[n]`.
          factor: a number; 1.0 for a consensus.
          ctx: the public `Context` of the lane group.
        Returns: float32 with the shapes of `ctx.specs`, and a bool scalar: all of it is finite.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how it decodes.")

    def compress_list(self, xs, ctx):
        return self.encode(xs, None, 1.0, ctx).payload

    def decompress_list(self, payload, ctx):
        if self.commutes_with_sum:
            return self.decode(payload, 1.0, ctx)[0]
        return self.aggregate_list(one_row(payload), ctx)

    def aggregate_list(self, payloads, ctx):
        if self.commutes_with_sum:
            return super().aggregate_list(payloads, ctx)
        return self.decode(payloads, 1.0, ctx)[0]

    def compress(self, x, ctx):
        return self.compress_list([x], ctx)

    def decompress(self, payload, ctx):
        return self.decompress_list(payload, ctx)[0]

    def aggregate(self, payloads, ctx):
        if self.commutes_with_sum:
            return super().aggregate(payloads, ctx)
        return self.aggregate_list(payloads, ctx)[0]

    def in_one_round(self, memory, xs, memories, states, ctx) -> Rounds:
        """The fused form for memories with the trait `in_encode`; see `rounds.fuses`."""
        encoded = self.encode(*compensated(memory, xs, memories, ctx), ctx)
        request = Sum if self.commutes_with_sum else Gather
        (reply,) = yield request([encoded.payload], encoded.finite)
        factor = 1.0 if self.aggregates == "consensus" else 1 / ctx.size
        totals, finite = self.decode(reply, factor, ctx)
        return Outcome(totals, settled(memories, encoded.residuals), states, finite)

    def __init_subclass__(cls, **keywords):
        super().__init_subclass__(**keywords)
        # Where a subclass overrides another action only, this form would ignore the override.
        actions = {*_ACTIONS, *(f"{action}_list" for action in _ACTIONS), "encode", "rounds"}
        if actions & vars(cls).keys():
            cls.encodes = "encode" in vars(cls)


def compensated(
    memory: Any, xs: Sequence[tf.Tensor], memories: Sequence[dict[str, tf.Tensor]], ctx: Context
) -> tuple[Sequence[tf.Tensor], Sequence[tf.Tensor] | None, float]:
    """(xs, residuals, multiplier) for operations that compress xs[i] * multiplier + residuals[i].

    The sums are what a memory of the trait `in_encode` compensates: the gradients times
    `ctx.multiplier`, plus the residuals times `memory.keeps`.  Where that is not 1 the residuals
    take the place of the gradients, so that the product needs no pass of its own.
    """
    residuals = residuals_of(memories)
    if residuals is None or memory.keeps == 1:
        return xs, residuals, ctx.multiplier
    if ctx.multiplier != 1:
        xs = [x * ctx.multiplier for x in xs]
    return residuals, xs, memory.keeps


def residuals_of(memories: Sequence[dict[str, tf.Tensor]]) -> list[tf.Tensor] | None:
    """The residuals in the states of a lane group, for fused forms; None where there are none."""
    return [state["residual"] for state in memories] if memories[0] else None


def settled(
    memories: Sequence[dict[str, tf.Tensor]], residuals: Sequence[tf.Tensor] | None
) -> Sequence[dict[str, tf.Tensor]]:
    """The next states, from the residuals that a fused form returns; unchanged for None."""
    return memories if residuals is None else [{"residual": each} for each in residuals]
