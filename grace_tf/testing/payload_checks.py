"""Checks of a compressor's documentation, random draws and payloads."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from grace_tf.core import registry
from grace_tf.testing import cases
from grace_tf.testing.arrays import same_bits
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
_GRADIENTS = 32  # tried until a draw changes the payload


def documents(s: Subject) -> None:
    """a docstring with the sections Wire:, Paper: and Differs:"""
    for stage in s.stages:
        text = type(stage).__doc__ or ""
        missing = [section for section in _SECTIONS if section not in text]
        demand(
            not missing,
            f"The docstring of {type(stage).__name__} has no section {', '.join(missing)}.",
        )


def decodes_elsewhere(s: Subject) -> Verdict:
    """decoding needs the bytes of the payload and the public context, nothing else"""
    if not s.compressor.one_round:
        return "it decodes in rounds"
    twin = registry.get(str(s.compressor))
    for worker, payload in enumerate(s.usual["payloads"]):
        sent = {name: (part.tobytes(), part.dtype) for name, part in payload.items()}
        received = {name: np.frombuffer(data, dtype) for name, (data, dtype) in sent.items()}
        context = s.context(cases.MAIN)
        with tf.Graph().as_default():
            decoded = twin.decompress({k: tf.constant(v) for k, v in received.items()}, context)
            with tf.compat.v1.Session() as session:
                decoded = session.run(decoded)
        # Another check tests whether graphs round like eager steps.
        sent = s.usual["sent"][worker]
        off = np.abs(decoded.astype(np.float64) - sent).max()
        demand(
            off <= 2.0**-18 * np.abs(sent).max(),
            f"Decoded from its bytes elsewhere, a payload gives another tensor, by {off:.3g}.",
        )


def graph_equals_eager(s: Subject) -> None:
    """a traced function computes what eager execution does: the same bits, if in one round"""
    eager = s.run(s.gradients, eager=True)
    for what in ("totals", "sent"):
        for worker, (a, b) in enumerate(zip(eager[what], s.usual[what])):
            # Methods of several rounds use matrix products, which graphs sum in another order.
            rounding = 0.0 if s.compressor.one_round else 64 * s.epsilon * np.abs(a).max()
            same = same_bits(a, b) or np.abs(a - b).max() <= rounding
            off = np.abs(a.astype(np.float64) - b).max()
            sentence = f"{what} of worker {worker} differ between eager and graph execution"
            if off <= 2.0**-18 * np.abs(a).max():
                sentence += " in their last bits: graphs turn x / c into x * (1 / c); write it so"
            demand(same, f"{sentence}.")


def draws_as_it_should(s: Subject) -> Verdict:
    """randomness comes from the context alone: same key, same payload; another key, another one"""

    def payload(worker=0, step=0, seed=SEED, variable=VARIABLE, gradient=0):
        x = tf.constant(cases.normal(cases.MAIN, gradient))
        spec = tf.TensorSpec(cases.MAIN, tf.float32)
        context = WatchedContext((spec,), (variable,), tf.constant(step, tf.int64), seed, 1, worker)
        rounds = s.compressor.rounds([x], [s.first_state(cases.MAIN)], context)
        parts = next(rounds).payloads[0]
        return b"".join(parts[name].numpy().tobytes() for name in sorted(parts)), set(context.drawn)

    def same(**what):
        # For some gradients the payload does not depend on the draw.
        return all(
            payload(gradient=i, **what)[0] == payload(gradient=i)[0] for i in range(_GRADIENTS)
        )

    first, drawn = payload()
    demand(payload()[0] == first, "The same gradient with the same key gives another payload.")
    if not drawn:
        demand(
            payload(seed=SEED + 1)[0] == first,
            "It depends on ctx.seed by itself: draw by ctx.key() or ctx.shared_key(), which differ "
            "by step, variable and (key) worker.",
        )
        return "it draws nothing"
    for what in ({"step": 1}, {"seed": SEED + 1}, {"variable": VARIABLE + 1}):
        demand(not same(**what), f"Another {next(iter(what))} draws the same numbers.")
    if "private" in drawn:
        demand(not same(worker=1), "It draws privately, yet two workers draw the same numbers.")
    else:
        demand(
            payload(worker=1)[0] == first,
            "It draws from the shared stream, yet two workers draw differently.",
        )


def blocks_decode_alone(s: Subject) -> Verdict:
    """a slice of the payload at block boundaries decodes alone, to the same bits"""
    c = s.compressor
    if c.divides_at is None or not c.one_round:
        return NOT_CLAIMED
    block = c.divides_at
    n = 3 * block + block // 2 + 3
    x = cases.normal((n,))
    payload = c.compress(tf.constant(x), s.context((n,), worker=0))
    whole = c.decompress(payload, s.context((n,))).numpy()

    def length(elements, part):
        return c.wire(tf.TensorSpec([elements], tf.float32))[part].shape[0] if elements else 0

    for start, stop in ((0, block), (block, 3 * block), (2 * block, n)):
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


CHECKS = (
    documents,
    decodes_elsewhere,
    graph_equals_eager,
    draws_as_it_should,
    blocks_decode_alone,
    payload_is_full,
    worth_sending,
)
