"""The contract of a compressor."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from grace_tf.core.context import Context
from grace_tf.core.payloads import check_decoding
from grace_tf.core.rounds import Gather, Payload, Rounds, Sum
from grace_tf.core.specs import spec_of
from grace_tf.ops.backend.words_as_floats import carried, joined, one_row, row

State = Mapping[str, tf.Tensor]

# Builds the composite for `Compressor.then` from a compressor and `{part: stage}`.  The registry
# sets it, because it imports this file and knows composites and the names in specs.
compose: Callable[[Any, Mapping[str, Any]], Any] | None = None


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
                          "consensus", which is never divided
      block               payload parts are concatenations over blocks of this many elements, so a
                          slice at a block boundary decodes alone; None where that does not hold
      divides_at          the multiple of elements at which a payload may be divided so: `block`,
                          unless parts have words of several blocks; None where a part is of the
                          whole variable, such as an index set
      exact_parts         payload parts that only a lossless inner stage may refine
      element_parts       payload parts in which each number stands for one element of the tensor
                          or is ignored; a composite that refines others is not nonexpansive
      recompressible      aggregates may be compressed again, as in the second of two hops: decoding
                          draws nothing, or alike in both hops and for every block
                          (`Context.either_hop`), and `aggregate` takes any number of rows
      elementwise         the payload encodes every element, as a quantiser's does, so that rows of
                          a sparse gradient can be compressed without the rest of the table
      row_share           for a method that selects: the fraction of the touched rows of a sparse
                          gradient that is sent whole, those of largest norm; None for others
      row_stage           what compresses the rows that such a method sends; None: they are exact
      begin_with_rate     the learning rate to begin with, where the aggregate has a length of its
                          own, as a vote has; None where that of uncompressed training serves
      repeats_late        what waits in a residual arrives at once, and a momentum of the optimizer
                          would repeat it: training with both fails
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
    element_parts: tuple[str, ...] = ()
    elementwise: bool = False
    row_share: float | None = None
    row_stage: Compressor | None = None
    recompressible: bool = False
    begin_with_rate: float | None = None
    repeats_late: bool = False

    def wire(self, spec: tf.TensorSpec) -> dict[str, tf.TensorSpec]:
        """The parts of the payload of one tensor: static, the same on every step and worker.

        Args:
          spec: the float32 `tf.TensorSpec` of the tensor, with any static shape of at least one
            element, `[]` included.
        Returns: `{part name: tf.TensorSpec}`, every part with one axis and, for each
          element,
            float32, int32, uint32, float16, bfloat16, int16 or uint16 where parts are gathered,
            float32, float16, bfloat16, float64, int32 or int64 where they are all-reduced
            (`commutes_with_sum`).
          A part is padded to whole 32-bit words; bits and bytes are packed into int32
          (`grace_tf.ops.pack_signs`, `grace_tf.ops.quantize`).  A method of several rounds lists
          the parts of all of them.
        Example: `{"signs": tf.TensorSpec([ops.packed_words(n, 1)], tf.int32)}`
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what it puts on the wire.")

    def wants(self, spec: tf.TensorSpec) -> bool:
        """Whether variables of this spec are compressed; others travel dense.

        The answer is static: it follows from the spec and hyperparameters.  `wire`, `compress` and
        `decompress` must serve other specs too: merged lanes and stages of composites use them.
        """
        return True

    def nbytes(self, spec: tf.TensorSpec) -> int:
        """Bytes on the wire for one tensor and one worker, after padding to 32-bit words."""
        return sum(
            -(-part.shape[0] * part.dtype.size // 4) * 4 for part in self.wire(spec).values()
        )

    def wires(self, specs: Sequence[tf.TensorSpec]) -> list[dict[str, tf.TensorSpec]]:
        """The parts of the payloads of a lane group: `wire` of each tensor, unless overridden.

        A method overrides it where the parts of one tensor depend on the others of the group.

        Args:
          specs: one for each lane, as in `wire`.
        Returns: a list of what `wire` returns, of any length.
        """
        return [self.wire(spec) for spec in specs]

    def group_nbytes(self, specs: Sequence[tf.TensorSpec]) -> int:
        """Bytes on the wire for a lane group and one worker, padded to 32-bit words by part."""
        lengths: dict[str, int] = {}
        for parts in self.wires(specs):
            for name, part in parts.items():
                lengths[name] = lengths.get(name, 0) + part.shape[0] * part.dtype.size
        return sum(-(-length // 4) * 4 for length in lengths.values())

    def relative_bound(self, spec: tf.TensorSpec) -> float | None:
        """A bound of the relative error of one compression.

        Args:
          spec: as in `wire`.
        Returns: β with E‖x − decompress(compress(x))‖² ≤ β·‖x‖² for every x in the range that the
          method serves, without an expectation where nothing is drawn, and up to float32 rounding
          and to the bias of draws of few bits; None where no such bound is known.
        """
        return None

    def refining(self) -> Compressor:
        """This compressor as the stage of a composite whose outer method relies on a residual.

        Returns: the compressor itself, or one that is `nonexpansive` where a hyperparameter leaves
          the choice to the method ("auto").  What the user has chosen is not changed.
        """
        return self

    def __init_subclass__(cls, **keywords: Any) -> None:
        """A class that defines an action on one tensor does not inherit that action on lists.

        Its `decompress` and `aggregate`, on tensors and on lists, are made to check their payload.
        """
        super().__init_subclass__(**keywords)
        check_decoding(cls)
        for action in ("compress", "decompress", "aggregate"):
            if action in vars(cls) and f"{action}_list" not in vars(cls):
                setattr(cls, f"{action}_list", getattr(Compressor, f"{action}_list"))

    def init_state(self, spec: tf.TensorSpec, ctx: Context) -> dict[str, tf.Tensor]:
        """The state before the first step.  All workers must compute the same one.

        Args:
          spec: as in `wire`.
          ctx: a public context of one lane at step 0; random numbers come from `ctx.shared_key()`.
        Returns: `{leaf name: tensor}`, which `rounds` gets in the first step.  Names, shapes and
          dtypes never change.  Only methods that override `rounds` have state.
        """
        return {}

    def compress(self, x: tf.Tensor, ctx: Context) -> Payload:
        """Encodes one tensor of one worker.

        Args:
          x: float32, with the shape of `ctx.spec`.
          ctx: the sender's `Context` of one lane.  Random numbers come from `ctx.key()`, a stream
            of this worker only, or `ctx.shared_key()`, a stream of all workers and the decoder.
        Returns: `{part name: tensor}` with exactly the parts, dtypes and sizes of
          `wire(ctx.spec)`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no one-tensor form.")

    def decompress(self, payload: Payload, ctx: Context) -> tf.Tensor:
        """Decodes a payload, from it and the public context alone.

        Args:
          payload: as `compress` returned it, on this worker or another; with `commutes_with_sum`
            also the sum of all workers' payloads.
          ctx: the public `Context` of one lane; random numbers come from `ctx.shared_key()`.
        Returns: float32, with the shape of `ctx.spec`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no one-tensor form.")

    def aggregate(self, payloads: Payload, ctx: Context) -> tf.Tensor:
        """The sum (or the consensus) of all workers' gathered payloads, never their mean.

        The sum runs in worker order, so that its bits are the same on every worker.  A method
        overrides it for speed, or to form a consensus.

        Args:
          payloads: `{part name: tensor}`, every part `[rows, n]`: `ctx.size` rows, row w from
            worker w, or after two hops the rows of `recompress_list`.
          ctx: as in `decompress`.
        Returns: float32, with the shape of `ctx.spec`.
        """
        rows = next(iter(payloads.values())).shape[0]

        def add(w, total):
            return w + 1, total + self.decompress(row(payloads, w), ctx)

        first = self.decompress(row(payloads, 0), ctx)
        if rows == 1:
            return first
        # A loop, so that the graph does not grow with the number of workers.
        return tf.while_loop(lambda w, _: w < rows, add, (tf.constant(1), first))[1]

    def compress_list(self, xs: Sequence[tf.Tensor], ctx: Context) -> Payload:
        """Encodes a lane group as one payload: each part is the lanes' parts end to end.

        A method overrides it for speed: a composite then needs no operation for each variable.
        """
        payloads = [self.compress(x, ctx.lane(i)) for i, x in enumerate(xs)]
        return joined(payloads)

    def decompress_list(self, payload: Payload, ctx: Context) -> list[tf.Tensor]:
        """Decodes the payload of `compress_list` to the tensors of the lane group."""
        each = self._of_lanes(payload, ctx)
        return [self.decompress(own, ctx.lane(i)) for i, own in enumerate(each)]

    def aggregate_list(self, payloads: Payload, ctx: Context) -> list[tf.Tensor]:
        """`aggregate` of a lane group.  Row w holds what `compress_list` gave on worker w."""
        each = self._of_lanes(payloads, ctx)
        return [self.aggregate(own, ctx.lane(i)) for i, own in enumerate(each)]

    def _of_lanes(self, payload: Payload, ctx: Context) -> list[Payload]:
        wires = [self.wire(spec) for spec in ctx.specs]
        parts = {}
        for name, part in payload.items():
            lengths = [wire[name].shape[0] for wire in wires]
            split = functools.partial(tf.split, num_or_size_splits=lengths, axis=-1)
            parts[name] = carried(split, part)
        return [{name: parts[name][i] for name in parts} for i in range(len(ctx))]

    def recompress_list(self, totals: Sequence[tf.Tensor], ctx: Context) -> Payload:
        """Encodes the aggregates that this worker has formed for all: the second of two hops.

        Args:
          totals: from `aggregate_list`, of blocks of the lanes' elements, each with one axis.
          ctx: the sender's `Context`, with the specs of `totals`.
        Returns: `{part name: tensor}`, every part `[rows, n]`.  `aggregate_list` of these rows
          gives `totals`, up to the error of compression.  The number of rows never changes: one
          row, from `compress_list`, unless overridden.
        """
        return one_row(self.compress_list(totals, ctx))

    def rounds(self, xs: Sequence[tf.Tensor], states: Sequence[State], ctx: Context) -> Rounds:
        """The method as a generator: it yields requests, is sent replies, and returns the result.

        The requests `Sum`, `Max`, `Gather` and `AllToAll` and their replies are described in
        `grace_tf.core.rounds`.  Every worker yields the same requests in the same order.

        Args:
          xs: one float32 tensor per lane, `xs[i]` with the shape of `ctx.specs[i]`.
          states: one `{leaf name: tensor}` per lane, from `init_state` or the last step.
          ctx: the sender's `Context` of the lane group; `ctx.lane(i)` is that of lane i.
        Returns: (totals, sent, states), lists with one entry per lane: the aggregate over all
          workers, what this worker's payload contributed to it (a residual keeps the rest), both
          float32 of the lane's shape, and the next state, the same on every worker.  `sent` may be
          None where `ctx.needs_sent` is False.
        Example, one all-reduce of what `compress` makes:

            replies = yield Sum([self.compress(x, ctx.lane(i)) for i, x in enumerate(xs)])

        A method that has one payload for the whole group yields a list of one dict and is sent a
        list of one reply.  On the wire that is the same as the lanes' parts end to end.
        """
        public = ctx.public()
        lanes = range(len(ctx))
        payloads = [self.compress(xs[i], ctx.lane(i)) for i in lanes]
        sent = None
        if ctx.needs_sent:
            sent = [self.decompress(payloads[i], public.lane(i)) for i in lanes]
        if self.commutes_with_sum:
            replies = yield Sum(payloads)
            totals = [self.decompress(replies[i], public.lane(i)) for i in lanes]
        else:
            replies = yield Gather(payloads)
            totals = [self.aggregate(replies[i], public.lane(i)) for i in lanes]
        return totals, sent, list(states)

    @property
    def divides_at(self) -> int | None:
        return self.block

    @property
    def one_round(self) -> bool:
        """True where `compress` and `decompress` are the whole method."""
        return type(self).rounds is Compressor.rounds

    def then(self, **parts: str | Compressor) -> Compressor:
        """Compresses parts of this method's payload further: `TopK(0.01).then(values=QSGD())`.

        Args:
          parts: `part=stage`; a part is named as `wire` names it, a stage is an instance or a spec.
        Returns: a composite.  A composite's own `then` refines further parts of its outer method.
        Raises: ValueError or TypeError for a part that does not exist or is refined already, and
          for a stage that cannot refine it.
        """
        return compose(self, parts)

    def __str__(self) -> str:
        return spec_of(self)


# Its `decompress` only tells that a method lacks one.
check_decoding(Compressor, without=["decompress"])
