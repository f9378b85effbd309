"""The contract of a compressor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from grace_tf.core.context import Context
from grace_tf.core.rounds import Gather, Payload, Rounds, Sum

State = Mapping[str, tf.Tensor]


class Compressor:
    """A pure codec: a frozen dataclass that holds hyperparameters and no state.

    A simple method gives `wire`, `compress` and `decompress` for one tensor; `rounds` lifts them
    to a lane group.  A method of several rounds overrides `rounds` and `init_state`.  Compressors
    yield requests and never communicate, average, clip, log or keep state.

    Traits are claims that `grace_tf.testing.check_compressor` proves; the defaults claim least.

      unbiased            E[decompress(compress(x))] = x
      nonexpansive        ‖x − decompress(compress(x))‖ ≤ ‖x‖ for every x: residuals stay bounded
      commutes_with_sum   decompress(Σ payloads) = Σ decompress(payload): payloads are all-reduced
      lossless            decompress(compress(x)) = x, bit for bit
      homogeneous         compress and decompress scale with x (tested with powers of two)
      fixed_size          the whole payload carries information on every step (no count or capacity)
      aggregates          "sum", divided by the number of workers where a mean is wanted, or
                          "consensus", which never is
      block               payload parts are concatenations over blocks of this many elements, so a
                          slice at a block boundary decodes alone; None where that does not hold
      exact_parts         payload parts that only a lossless inner stage may refine
    """

    name: str = ""
    unbiased: bool = False
    nonexpansive: bool = False
    commutes_with_sum: bool = False
    lossless: bool = False
    homogeneous: bool = False
    fixed_size: bool = True
    aggregates: str = "sum"
    block: int | None = None
    exact_parts: tuple[str, ...] = ()

    def wire(self, spec: tf.TensorSpec) -> dict[str, tf.TensorSpec]:
        """The rank-1 parts of the payload of a tensor of this spec: static, the same on every step.

        A method of several rounds lists the parts of all of them.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what it puts on the wire.")

    def nbytes(self, spec: tf.TensorSpec) -> int:
        """Bytes on the wire for one tensor and one worker, after padding to 32-bit words."""
        return sum(
            -(-part.shape[0] * part.dtype.size // 4) * 4 for part in self.wire(spec).values()
        )

    def init_state(self, spec: tf.TensorSpec, ctx: Context) -> dict[str, tf.Tensor]:
        """State between steps.  It must be public: the same on every worker, by construction."""
        return {}

    def compress(self, x: tf.Tensor, ctx: Context) -> Payload:
        """The payload of a float32 tensor of `ctx.spec`; may draw from `ctx.key()`."""
        raise NotImplementedError(f"{type(self).__name__} has no one-tensor form.")

    def decompress(self, payload: Payload, ctx: Context) -> tf.Tensor:
        """The float32 tensor of `ctx.spec`, from the payload and the public context alone."""
        raise NotImplementedError(f"{type(self).__name__} has no one-tensor form.")

    def aggregate(self, payloads: Payload, ctx: Context) -> tf.Tensor:
        """The sum (or the consensus) of all workers; every part has a leading axis of workers.

        The sum runs in worker order, so that it is the same bits on every worker.
        """

        def add(w, total):
            return w + 1, total + self.decompress({k: v[w] for k, v in payloads.items()}, ctx)

        first = self.decompress({k: v[0] for k, v in payloads.items()}, ctx)
        if ctx.size == 1:
            return first
        # A loop, so that the graph does not grow with the number of workers.
        return tf.while_loop(lambda w, _: w < ctx.size, add, (tf.constant(1), first))[1]

    def rounds(self, xs: Sequence[tf.Tensor], states: Sequence[State], ctx: Context) -> Rounds:
        """Yields requests; returns (totals, sent, states), one of each per lane.

        `totals` is the aggregate over workers, `sent` what this worker's payload contributed to it.
        """
        public = ctx.public()
        lanes = range(len(ctx))
        payloads = [self.compress(xs[i], ctx.lane(i)) for i in lanes]
        sent = [self.decompress(payloads[i], public.lane(i)) for i in lanes]
        if self.commutes_with_sum:
            replies = yield Sum(payloads)
            totals = [self.decompress(replies[i], public.lane(i)) for i in lanes]
        else:
            replies = yield Gather(payloads)
            totals = [self.aggregate(replies[i], public.lane(i)) for i in lanes]
        return totals, sent, list(states)

    @property
    def one_round(self) -> bool:
        """True where `compress` and `decompress` are the whole method."""
        return type(self).rounds is Compressor.rounds

    def then(self, **parts: Compressor) -> Compressor:
        """This with parts of its payload compressed further: `TopK(0.01).then(values=QSGD())`."""
        from grace_tf.core.then import Then  # Then is itself a Compressor

        return Then(self, tuple(parts.items()))

    def __str__(self) -> str:
        from grace_tf.core.registry import spec_of  # the registry knows the names of values

        return spec_of(self)
