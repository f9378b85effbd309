"""Checks of what a compressor is and of what it puts on the wire."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from grace_tf.core import registry
from grace_tf.core.then import Then
from grace_tf.testing import cases
from grace_tf.testing.subject import (
    NOT_CLAIMED,
    SEED,
    VARIABLE,
    Subject,
    Verdict,
    WatchedContext,
    demand,
)

_SECTIONS = ("Wire:", "Paper:", "Differs:")


def constructs(s: Subject) -> None:
    """a frozen, hashable value whose spec builds an equal one"""
    c = s.compressor
    demand(
        dataclasses.is_dataclass(c) and c.__dataclass_params__.frozen, "It is no frozen dataclass."
    )
    twin = copy.deepcopy(c)
    demand(
        twin == c and hash(twin) == hash(c), "A copy of it is not equal to it or has another hash."
    )
    rebuilt = registry.get(str(c))
    demand(rebuilt == c, f"Its spec {str(c)!r} builds {rebuilt!r} instead of {c!r}.")
    demand(str(rebuilt) == str(c), f"Its spec changes from {str(c)!r} to {str(rebuilt)!r}.")


def documents(s: Subject) -> None:
    """a docstring with the sections Wire:, Paper: and Differs:"""
    c = s.compressor
    stages = [c.outer, *(stage for _, stage in c.inner)] if isinstance(c, Then) else [c]
    for stage in stages:
        text = type(stage).__doc__ or ""
        missing = [section for section in _SECTIONS if section not in text]
        demand(
            not missing,
            f"The docstring of {type(stage).__name__} has no section {', '.join(missing)}.",
        )


def wire_is_true(s: Subject) -> None:
    """payloads have the parts, dtypes and sizes that wire(spec) announces, on every step"""
    c = s.compressor
    for shape, outcome in s.by_shape.items():
        spec = tf.TensorSpec(shape, tf.float32)
        announced = _described(c.wire(spec))
        demand(
            all(len(dims) == 1 for dims, _ in announced.values()),
            f"A part is not of rank 1: {announced}.",
        )
        demand(_described(c.wire(spec)) == announced, "wire(spec) differs between two calls.")
        padded = sum(
            -(-dims[0] * tf.as_dtype(dtype).size // 4) * 4 for dims, dtype in announced.values()
        )
        demand(c.nbytes(spec) == padded, f"nbytes says {c.nbytes(spec)}, its parts take {padded}.")
        for payload in outcome["payloads"]:
            found = _described(payload)
            demand(
                found == announced, f"Shape {shape}: wire says {announced}, the payload is {found}."
            )
    for step in (1, 2):
        found = _described(s.run(s.gradients, step)["payloads"][0])
        announced = _described(c.wire(tf.TensorSpec(cases.MAIN, tf.float32)))
        demand(found == announced, f"On step {step} wire says {announced}, the payload is {found}.")


def _described(parts: dict[str, Any]) -> dict[str, tuple]:
    return {
        name: (tuple(part.shape), tf.as_dtype(part.dtype).name)
        for name, part in sorted(parts.items())
    }


def shapes_hold(s: Subject) -> None:
    """float32 of the gradient's shape comes back, for any shape"""
    for shape, outcome in s.by_shape.items():
        for what in ("totals", "sent"):
            for tensor in outcome[what]:
                found = (tuple(tensor.shape), tensor.dtype.name)
                demand(found == (shape, "float32"), f"Shape {shape}: {what} has {found}.")


def decodes_elsewhere(s: Subject) -> Verdict:
    """decoding needs the bytes of the payload and the public context, nothing else"""
    if not s.compressor.one_round:
        return "it decodes in rounds"
    twin = copy.deepcopy(s.compressor)
    for worker, payload in enumerate(s.usual["payloads"]):
        sent = {name: (part.tobytes(), part.dtype) for name, part in payload.items()}
        received = {name: np.frombuffer(data, dtype) for name, (data, dtype) in sent.items()}
        context = s.context(cases.MAIN)
        with tf.Graph().as_default():
            decoded = twin.decompress({k: tf.constant(v) for k, v in received.items()}, context)
            with tf.compat.v1.Session() as session:
                decoded = session.run(decoded)
        same = same_bits(decoded, s.usual["sent"][worker])
        demand(same, "Decoded from bytes in another graph, a payload gives another tensor.")


def graph_equals_eager(s: Subject) -> None:
    """a traced function computes what eager execution does: the same bits, if in one round"""
    eager = s.run(s.gradients, eager=True)
    for what in ("totals", "sent"):
        for worker, (a, b) in enumerate(zip(eager[what], s.usual[what])):
            # Matrix products, the stuff of further rounds, are summed in another order in graphs.
            rounding = 0.0 if s.compressor.one_round else 64 * s.epsilon * np.abs(a).max()
            same = same_bits(a, b) or np.abs(a - b).max() <= rounding
            demand(same, f"{what} of worker {worker} differ between eager and graph execution.")


def traces_once(s: Subject) -> None:
    """the second step runs the graph of the first"""
    s.run(s.gradients, 0)
    before = s.traced.experimental_get_tracing_count()
    states = s.run(s.gradients, 1)["states"]
    s.run(s.gradients[::-1], 2, states)
    traced = s.traced.experimental_get_tracing_count() - before
    demand(traced == 0, f"{traced} of two further steps traced anew.")


def draws_as_it_should(s: Subject) -> Verdict:
    """randomness comes from the context alone: same key, same payload; another key, another one"""
    x = cases.normal(cases.MAIN)

    def payload(worker=0, step=0, seed=SEED, variable=VARIABLE):
        spec = tf.TensorSpec(cases.MAIN, tf.float32)
        context = WatchedContext((spec,), (variable,), tf.constant(step, tf.int64), seed, 1, worker)
        rounds = s.compressor.rounds([tf.constant(x)], [s.first_state(cases.MAIN)], context)
        parts = next(rounds).payloads[0]
        return b"".join(parts[name].numpy().tobytes() for name in sorted(parts)), set(context.drawn)

    first, drawn = payload()
    demand(payload()[0] == first, "The same gradient with the same key gives another payload.")
    if not drawn:
        return "it draws nothing"
    for what in ({"step": 1}, {"seed": SEED + 1}, {"variable": VARIABLE + 1}):
        demand(payload(**what)[0] != first, f"Another {next(iter(what))} draws the same numbers.")
    other = payload(worker=1)[0]
    if "private" in drawn:
        demand(other != first, "It draws privately, yet two workers draw the same numbers.")
    else:
        demand(other == first, "It draws from the shared stream, yet two workers draw differently.")


def blocks_decode_alone(s: Subject) -> Verdict:
    """a slice of the payload at block boundaries decodes alone, to the same bits"""
    c = s.compressor
    if c.block is None or not c.one_round:
        return NOT_CLAIMED
    n = 3 * c.block + c.block // 2 + 3
    x = cases.normal((n,))
    payload = c.compress(tf.constant(x), s.context((n,), worker=0))
    whole = c.decompress(payload, s.context((n,))).numpy()

    def length(elements, part):
        return c.wire(tf.TensorSpec([elements], tf.float32))[part].shape[0] if elements else 0

    for start, stop in ((0, c.block), (c.block, 3 * c.block), (2 * c.block, n)):
        pieces = {k: part[length(start, k) : length(stop, k)] for k, part in payload.items()}
        alone = c.decompress(pieces, s.context((stop - start,))).numpy()
        demand(
            same_bits(alone, whole[start:stop]),
            f"Elements {start} to {stop} of {n} do not decode alone.",
        )


def payload_is_full(s: Subject) -> Verdict:
    """fixed_size: no part ends in a stretch of zeros, whatever the scale of the gradient"""
    if not s.compressor.fixed_size:
        return NOT_CLAIMED
    for scale in (2.0**-10, 1.0, 2.0**9):
        for payload in s.run(s.gradients * np.float32(min(scale, s.huge / 8)))["payloads"]:
            for name, part in payload.items():
                used = np.flatnonzero(part.astype(np.float64))
                last = used[-1] + 1 if used.size else 0
                full = last > 0.75 * part.size
                demand(
                    full,
                    f"At scale {scale} only {last} of {part.size} elements of {name!r} are used.",
                )


def worth_sending(s: Subject) -> None:
    """a payload as long as the gradient loses nothing"""
    spec = tf.TensorSpec(cases.MAIN, tf.float32)
    dense = 4 * int(np.prod(cases.MAIN))
    if s.compressor.nbytes(spec) < dense:
        return
    lost = any(not np.array_equal(x, sent) for x, sent in zip(s.gradients, s.usual["sent"]))
    sentence = (
        f"{s.compressor.nbytes(spec)} bytes carry less than the {dense} bytes of the gradient do."
    )
    demand(not lost, sentence)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays hold the same bits; zeros of either sign count as the same."""
    return a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True)


CHECKS = (
    constructs,
    documents,
    wire_is_true,
    shapes_hold,
    decodes_elsewhere,
    graph_equals_eager,
    traces_once,
    draws_as_it_should,
    blocks_decode_alone,
    payload_is_full,
    worth_sending,
)
