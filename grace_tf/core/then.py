"""Composition: a compressor whose payload parts are compressed further."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from grace_tf.core.compressor import Compressor
from grace_tf.core.context import Context
from grace_tf.core.rounds import Payload
from grace_tf.core.specs import with_stages
from grace_tf.ops.backend.words_as_floats import carried


@dataclasses.dataclass(frozen=True, repr=False)
class Then(Compressor):
    """`outer`, with the named parts of its payload compressed by inner stages.

    Wire: the outer parts, each refined part replaced by its stage's parts under `part.name`.
    Traits: a composite is unbiased, homogeneous, … where all of its stages are.  It is nonexpansive
    where they are and each lossy stage refines one of the outer's `element_parts`: an error in a
    number that stands for many elements, such as a mean, is an error in all of these elements.
    Where the outer method relies on a residual, the stages of its `element_parts` are taken as
    their `refining` gives them, so that the residual may stand.  The composite's spec names them.
    """

    outer: Compressor
    inner: tuple[tuple[str, Compressor], ...]

    def __post_init__(self) -> None:
        if self.relies_on_residual:
            safe = self.outer.element_parts
            inner = tuple((p, s.refining() if p in safe else s) for p, s in self.inner)
            object.__setattr__(self, "inner", inner)
        if isinstance(self.outer, Then) or any(isinstance(stage, Then) for _, stage in self.inner):
            raise ValueError(
                "Composites do not nest: refine further parts of one outer method with then()."
            )
        named = [part for part, _ in self.inner]
        if len(set(named)) < len(named):
            raise ValueError(f"A part of {self.outer} is refined twice: {', '.join(named)}.")
        parts = self.outer.wire(tf.TensorSpec([4096], tf.float32)) if self.outer.one_round else {}
        for part, stage in self.inner:
            if not self.outer.one_round or not stage.one_round:
                raise ValueError(
                    f"{self.outer} with {part}={stage}: only methods of one round compose."
                )
            if part not in parts:
                raise ValueError(
                    f"{self.outer} has no payload part {part!r}; it has: {', '.join(parts)}."
                )
            if part in self.outer.exact_parts and not stage.lossless:
                raise ValueError(
                    f"{stage} is lossy, but the part {part!r} of {self.outer} must stay exact."
                )
            if not stage.lossless and parts[part].dtype != tf.float32:
                raise ValueError(
                    f"{stage} compresses float32 parts, but {part!r} is {parts[part].dtype.name}."
                )
            if stage.aggregates != "sum":
                raise ValueError(
                    f"{stage} gives a consensus and cannot refine a part of {self.outer}."
                )

    def _all(self, trait: str) -> bool:
        return all(getattr(c, trait) for c in (self.outer, *(stage for _, stage in self.inner)))

    @property
    def relies_on_residual(self) -> bool:
        """Whether the outer method leaves something out, as a selection does, that only a residual
        sends later."""
        return self.outer.nonexpansive and not self.outer.unbiased

    def _refines_elements(self) -> bool:
        safe = self.outer.element_parts
        return all(part in safe or stage.lossless for part, stage in self.inner)

    unbiased = property(lambda self: self._all("unbiased"))
    nonexpansive = property(lambda self: self._all("nonexpansive") and self._refines_elements())
    commutes_with_sum = property(lambda self: self._all("commutes_with_sum"))
    lossless = property(lambda self: self._all("lossless"))
    homogeneous = property(lambda self: self._all("homogeneous"))
    fixed_size = property(lambda self: self._all("fixed_size"))
    elementwise = property(lambda self: self._all("elementwise"))
    aggregates = property(lambda self: self.outer.aggregates)
    row_share = property(lambda self: self.outer.row_share)
    begin_with_rate = property(lambda self: self.outer.begin_with_rate)
    repeats_late = property(lambda self: self.outer.repeats_late)
    exact_parts = property(lambda self: self.outer.exact_parts)
    name = property(lambda self: self.outer.name)

    @property
    def row_stage(self) -> Compressor | None:
        """The stage of the part whose numbers stand for elements: it compresses whole rows too."""
        stages = [stage for part, stage in self.inner if part in self.outer.element_parts]
        return stages[0] if stages else self.outer.row_stage

    def wants(self, spec: tf.TensorSpec) -> bool:
        return self.outer.wants(spec)

    def wire(self, spec: tf.TensorSpec) -> dict[str, tf.TensorSpec]:
        parts = dict(self.outer.wire(spec))
        for part, stage in self.inner:
            inner = stage.wire(parts.pop(part))
            parts.update({f"{part}.{name}": s for name, s in inner.items()})
        return parts

    def _stages(self, ctx: Context):
        parts = self.outer.wire(ctx.spec)
        for number, (part, stage) in enumerate(self.inner):
            yield part, stage, ctx.stage(number, parts[part])

    def compress(self, x: tf.Tensor, ctx: Context) -> Payload:
        payload = dict(self.outer.compress(x, ctx))
        for part, stage, inner_ctx in self._stages(ctx):
            inner = stage.compress(payload.pop(part), inner_ctx)
            payload.update({f"{part}.{name}": value for name, value in inner.items()})
        return payload

    def decompress(self, payload: Payload, ctx: Context) -> tf.Tensor:
        return self.outer.decompress(
            self._expand(payload, ctx, lambda s, p, c: s.decompress(p, c)), ctx
        )

    def aggregate(self, payloads: Payload, ctx: Context) -> tf.Tensor:
        def every_worker(stage, parts, inner_ctx):
            # A loop, so that the graph does not grow with the number of workers.
            return tf.map_fn(
                lambda part: stage.decompress(part, inner_ctx),
                parts,
                fn_output_signature=inner_ctx.spec,
            )

        return self.outer.aggregate(self._expand(payloads, ctx, every_worker), ctx)

    def _expand(self, payload: Payload, ctx: Context, decode) -> Payload:
        """The outer payload, with its refined parts decoded."""
        payload = dict(payload)
        for part, stage, inner_ctx in self._stages(ctx):
            names = list(stage.wire(inner_ctx.spec))
            inner = {name: payload.pop(f"{part}.{name}") for name in names}
            payload[part] = decode(stage, inner, inner_ctx)
        return payload

    def compress_parts(
        self, payload: Payload, sizes: Sequence[int], ctx: Context
    ) -> tuple[Payload, Payload]:
        """Refines the outer payload of a lane group: (the payload, the refined parts decoded).

        `sizes[i]` is the length of lane i in every refined part.
        """
        payload, decoded = dict(payload), {}
        for part, stage, inner_ctx in self._list_stages(ctx, sizes):
            inner = stage.compress_list(tf.split(payload.pop(part), sizes), inner_ctx)
            payload.update({f"{part}.{name}": value for name, value in inner.items()})
            if ctx.needs_sent:
                decoded[part] = tf.concat(stage.decompress_list(inner, inner_ctx.public()), 0)
        return payload, decoded

    def decompress_parts(self, payloads: Payload, sizes: Sequence[int], ctx: Context) -> Payload:
        """The outer payloads of a lane group, `[size, n]` a part, from every worker's payload."""
        payloads = dict(payloads)
        for part, stage, inner_ctx in self._list_stages(ctx.public(), sizes):
            prefix = f"{part}."
            names = [name for name in payloads if name.startswith(prefix)]
            inner = {name.removeprefix(prefix): payloads.pop(name) for name in names}
            payloads[part] = _decoded(stage, inner, inner_ctx)
        return payloads

    def _list_stages(self, ctx: Context, sizes: Sequence[int]):
        specs = tuple(tf.TensorSpec([n], tf.float32) for n in sizes)
        for number, (part, stage) in enumerate(self.inner):
            yield part, stage, dataclasses.replace(ctx.stage(number), specs=specs)

    def __str__(self) -> str:
        return with_stages(str(self.outer), self.inner)

    def __repr__(self) -> str:
        stages = ", ".join(f"{part}={stage!r}" for part, stage in self.inner)
        return f"{self.outer!r}.then({stages})"


def _decoded(stage: Compressor, rows: Payload, ctx: Context) -> tf.Tensor:
    """Decodes every worker's payload of a lane group: `[size, n]`, the lanes end to end."""
    if type(stage).decompress_list is Compressor.decompress_list:
        # A loop, so that the graph does not grow with the number of workers.
        n = sum(ctx.lengths)
        return tf.map_fn(
            lambda row: tf.concat(stage.decompress_list(row, ctx), 0),
            rows,
            fn_output_signature=tf.TensorSpec([n], tf.float32),
        )
    # The payloads of all workers end to end are one payload, of a group with all their lanes.
    specs, variables = ctx.specs * ctx.size, ctx.variables * ctx.size
    every = dataclasses.replace(ctx, specs=specs, variables=variables)
    flat = {name: carried(lambda part: tf.reshape(part, [-1]), part) for name, part in rows.items()}
    return tf.reshape(tf.concat(stage.decompress_list(flat, every), 0), [ctx.size, -1])
