"""Checks of the traits that a compressor claims, and of its arithmetic."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from grace_tf.testing import cases
from grace_tf.testing.arrays import same_bits
from grace_tf.testing.subject import NOT_CLAIMED, SIZE, Subject, Verdict, demand

_SIGMAS = 5.0
_SAMPLES = 96  # steps of SIZE workers each


def zero_stays_zero(s: Subject) -> Verdict:
    """zero gradients on all workers aggregate to zero (a consensus may decide otherwise)"""
    if s.compressor.aggregates == "consensus":
        return "it is a consensus"
    outcome = s.run(np.zeros((SIZE, *cases.MAIN)))
    large = s.run(np.zeros((1, s.ladder[-1][0])), eager=True)
    for what in ("totals", "sent"):
        found = np.any(outcome[what]) or np.any(large[what])
        demand(not found, f"Zero gradients give {what} that are not zero.")


def stays_finite(s: Subject) -> None:
    """finite gradients from 1e30 (or what its floats can hold) to denormals give finite results"""
    for name, _, outcome, worker in s.trials:
        for what in ("totals", "sent"):
            demand(
                np.all(np.isfinite(outcome[what][worker])),
                f"The case {name!r} makes {what} non-finite.",
            )
        for leaf, state in outcome["states"][worker].items():
            demand(
                np.all(np.isfinite(state)),
                f"The case {name!r} makes the state {leaf!r} non-finite.",
            )
    for scale in (s.huge / 16, 1e-30):  # the state of one step is added to the next gradient
        x, states = (s.gradients * scale).astype(np.float32), None
        for step in range(3):
            outcome = s.run(x, step, states)
            states = outcome["states"]
            sentence = f"Gradients of about {scale:.0e} become non-finite on step {step}."
            demand(np.all(np.isfinite(outcome["totals"])), sentence)


def is_unbiased(s: Subject) -> Verdict:
    """unbiased: the mean error over draws is zero in 18 directions, to 5 standard errors"""
    if not s.compressor.unbiased:
        return NOT_CLAIMED
    n = int(np.prod(cases.MAIN))
    scales = 10.0 ** np.random.default_rng(3).uniform(-2, 0, cases.MAIN)
    x = (cases.normal(cases.MAIN, 17) * scales).astype(np.float32)
    flat = x.reshape(n).astype(np.float64)
    directions = np.concatenate([[flat, np.sign(flat)], cases.random_directions(16, cases.MAIN)])
    stacked, errors = np.stack([x] * SIZE), []
    for step in range(_SAMPLES):
        sent = np.stack(s.run(stacked, step)["sent"]).reshape(SIZE, n)
        errors.append((sent.astype(np.float64) - flat) @ directions.T)
    errors = np.concatenate(errors)
    rounding = s.epsilon * np.abs(directions) @ np.abs(flat)
    standard_error = errors.std(0, ddof=1) / np.sqrt(len(errors))
    off = np.abs(errors.mean(0)) / (_SIGMAS * standard_error + rounding)
    demand(
        off.max() < 1,
        f"The mean over {len(errors)} draws is {_SIGMAS * off.max():.1f} standard errors off.",
    )
    for shape, (x, sent) in s.draws.items():
        if np.count_nonzero(sent) < 40 * x.shape[1]:
            continue  # too few draws for a mean
        # The error in the direction of the gradient, for each element.
        errors = (sent.astype(np.float64) - x) * np.sign(x)
        bound = 7 * errors.std(0, ddof=1) / np.sqrt(len(x)) + 4 * s.epsilon * np.abs(x).max()
        off = np.flatnonzero(np.abs(errors.mean(0)) > bound)
        demand(not off.size, f"Shape {shape}: the mean of element {off[:1]} is off.")


def is_nonexpansive(s: Subject) -> Verdict:
    """nonexpansive: ‖x − C(x)‖ ≤ ‖x‖ on random and adversarial gradients, small and large"""
    if not s.compressor.nonexpansive:
        return NOT_CLAIMED
    for name, x, sent in s.pairs:
        exact, sent = x.astype(np.float64), sent.astype(np.float64)
        # Parts below the smallest normal number may be lost.
        error, norm = np.linalg.norm(exact - sent), np.linalg.norm(exact)
        bound = norm * (1 + 1e-6) + np.finfo(np.float32).tiny
        demand(
            error <= bound, f"The case {name!r}: an error of {error:.6g} for a norm of {norm:.6g}."
        )


def error_is_bounded(s: Subject) -> Verdict:
    """relative_bound: the relative error keeps to it, over draws to 5 standard errors"""
    if s.compressor.relative_bound(tf.TensorSpec(cases.MAIN, tf.float32)) is None:
        return NOT_CLAIMED
    for shape, (x, sent) in s.draws.items():
        bound = s.compressor.relative_bound(tf.TensorSpec(shape, tf.float32))
        exact = x.astype(np.float64)
        errors = ((exact - sent) ** 2).sum(1) / (exact**2).sum(1)
        allowed = bound + _SIGMAS * errors.std() / np.sqrt(len(errors)) + 1e-6
        demand(
            errors.mean() <= allowed,
            f"Shape {shape}: a mean relative error of {errors.mean():.6g}, bound {bound:.6g}.",
        )
    return None


def commutes_with_sum(s: Subject) -> Verdict:
    """commutes_with_sum: the sum of payloads decodes to the sum of what they decode to"""
    c = s.compressor
    if not c.commutes_with_sum or not c.one_round:
        return NOT_CLAIMED
    context = s.context(cases.MAIN)
    payloads = [{k: tf.constant(v) for k, v in p.items()} for p in s.usual["payloads"]]
    total = {k: payloads[0][k] + payloads[1][k] + payloads[2][k] for k in payloads[0]}
    _close(s, c.decompress(total, context).numpy(), s.usual["sent"], "The sum of payloads")


def aggregates_the_sum(s: Subject) -> Verdict:
    """the aggregate is the sum of what the workers sent (unless it is a consensus)"""
    if s.compressor.aggregates == "consensus":
        return "it is a consensus"
    outcomes = [(cases.MAIN, s.usual), *s.by_shape.items(), *s.trial_outcomes]
    outcomes += [((n,), outcome) for n, _, outcome in s.ladder]
    for where, outcome in outcomes:
        for total in outcome["totals"]:
            _close(s, total, outcome["sent"], f"{where}: the aggregate")


def consensus_is_among_the_sent(s: Subject) -> Verdict:
    """consensus: each element lies between the smallest and the largest that a worker sent"""
    if s.compressor.aggregates != "consensus":
        return NOT_CLAIMED
    alike = s.run(np.stack([s.gradients[0]] * SIZE))
    for outcome in (s.usual, alike):
        sent = np.asarray(outcome["sent"])
        slack = 8 * s.epsilon * np.abs(sent).max()
        for total in outcome["totals"]:
            inside = (sent.min(0) - slack <= total) & (total <= sent.max(0) + slack)
            demand(
                np.all(inside),
                "The aggregate leaves the range of what the workers sent: a consensus is neither "
                "summed nor divided by the number of workers.",
            )


def _close(s: Subject, total: np.ndarray, sent: list, what: str) -> None:
    exact = np.sum(np.asarray(sent, np.float64), 0)
    error = np.abs(total - exact).max()
    bound = 4 * s.epsilon * np.sum(np.abs(np.asarray(sent, np.float64)), 0).max()
    if not s.compressor.one_round:
        bound *= 16  # matrix products in another order
    demand(
        error <= bound,
        f"{what} is {error:.3g} off the sum of what was sent (allowed: {bound:.3g}).",
    )


def is_lossless(s: Subject) -> Verdict:
    """lossless: every gradient comes back, bit for bit"""
    if not s.compressor.lossless:
        return NOT_CLAIMED
    for name, x, sent in s.pairs:
        same = np.array_equal(x.view(np.int32), sent.view(np.int32))
        demand(same, f"The case {name!r} does not come back as it was.")
    if s.compressor.one_round:
        context = s.context(cases.MAIN, worker=0)
        x = cases.not_numbers(cases.MAIN)
        payload = s.compressor.compress(tf.constant(x), context)
        sent = s.compressor.decompress(payload, context.public()).numpy()
        same = np.array_equal(x.view(np.int32), sent.view(np.int32))
        demand(same, "Infinities and the bits of NaNs do not come back as they were.")


def is_elementwise(s: Subject) -> Verdict:
    """elementwise: one round that gives a sum, and every one of 8 equal elements is sent"""
    c = s.compressor
    if not c.elementwise:
        return NOT_CLAIMED
    demand(c.one_round and c.aggregates == "sum", "It is no sum of one round.")
    x = np.ones((SIZE, 8), np.float32)
    sent = [np.stack(s.run(x, step)["sent"]).reshape(SIZE, 8) for step in range(16)]
    never = np.flatnonzero(~np.any(sent, (0, 1)))
    demand(not never.size, f"Elements {never.tolist()} are never sent.")


def is_homogeneous(s: Subject) -> Verdict:
    """homogeneous: scaling the gradient by a power of two scales the result exactly"""
    if not s.compressor.homogeneous:
        return NOT_CLAIMED
    x = np.stack([cases.away_from_zero(cases.MAIN, 30 + w) for w in range(SIZE)])
    plain = s.run(x)
    for power in (-2, 3):
        factor = np.float32(2.0**power)
        scaled = s.run(x * factor)
        for what in ("totals", "sent"):
            for a, b in zip(plain[what], scaled[what]):
                demand(
                    same_bits(a * factor, b),
                    f"2^{power} times the gradient does not scale the {what}.",
                )
    n, x, plain = s.ladder[-1]
    scaled = s.run(x * 8, eager=True)
    same = all(same_bits(a * 8, b) for a, b in zip(plain["sent"], scaled["sent"]))
    demand(same, f"8 times a gradient of {n} elements does not scale what is sent.")


def exact_parts_are_named(s: Subject) -> Verdict:
    """a small change of a float32 part outside exact_parts changes the result only a little"""
    c = s.compressor
    if not c.one_round:
        return "only methods of one round compose"
    payload, sent = s.usual["payloads"][0], s.usual["sent"][0]
    for name, part in payload.items():
        if part.dtype != np.float32 or name in c.exact_parts:
            continue
        changed = {k: tf.constant(v) for k, v in payload.items()}
        changed[name] *= 1 + 2.0**-8
        hint = f"The part {name!r} does not stand a change of 1/256: name it in exact_parts."
        try:
            decoded = c.decompress(changed, s.context(cases.MAIN)).numpy()
        except (ValueError, tf.errors.InvalidArgumentError):
            demand(False, hint)
        off = np.linalg.norm(decoded.astype(np.float64) - sent)
        demand(off <= 0.25 * np.linalg.norm(sent.astype(np.float64)), hint)
    return None


def element_parts_are_elements(s: Subject) -> Verdict:
    """what is added to a part in element_parts changes the tensor by no more than that"""
    c = s.compressor
    if not (c.one_round and c.element_parts):
        return NOT_CLAIMED
    payload = {k: tf.constant(v) for k, v in s.usual["payloads"][0].items()}
    before = c.decompress(payload, s.context(cases.MAIN)).numpy().astype(np.float64)
    for name in c.element_parts:
        added = cases.normal(payload[name].shape, 5)
        changed = {**payload, name: payload[name] + tf.cast(added, payload[name].dtype)}
        off = c.decompress(changed, s.context(cases.MAIN)).numpy() - before
        demand(
            np.linalg.norm(off) <= 1.01 * np.linalg.norm(added.astype(np.float64)),
            f"Numbers of the part {name!r} stand for more than one element each.",
        )


def any_order_of_workers(s: Subject) -> Verdict:
    """the aggregate does not depend on the order of the workers, to rounding"""
    c, order = s.compressor, [2, 0, 1]
    if c.one_round and not c.commutes_with_sum:
        payloads = s.usual["payloads"]
        parts = {k: tf.constant(np.stack([payloads[w][k] for w in order])) for k in payloads[0]}
        other = c.aggregate(parts, s.context(cases.MAIN)).numpy()
    elif c.one_round:
        other = s.run(s.gradients[order])["totals"][0]
    else:
        return "its sums are the transport's"
    total = s.usual["totals"][0]
    bound = 8 * s.epsilon * max(np.abs(total).max(), np.abs(np.asarray(s.usual["sent"])).max())
    error = np.abs(other - total).max()
    demand(error <= bound, f"In another order of workers the aggregate differs by {error:.3g}.")


def graph_does_not_grow(s: Subject) -> Verdict:
    """the graph of `aggregate` has as many nodes for 8 workers as for 2"""
    c = s.compressor
    if not c.one_round or c.commutes_with_sum:
        return "its sums are the transport's"
    wire = c.wire(tf.TensorSpec(cases.MAIN, tf.float32))
    counts = []
    for size in (2, 8):
        specs = {k: tf.TensorSpec([size, *part.shape], part.dtype) for k, part in wire.items()}
        context = s.context(cases.MAIN, size=size)
        traced = tf.function(
            lambda parts, context=context: c.aggregate(parts, context), autograph=False
        )
        graph = traced.get_concrete_function(specs).graph.as_graph_def()
        counts.append(len(graph.node) + sum(len(f.node_def) for f in graph.library.function))
    demand(counts[0] == counts[1], f"2 workers take {counts[0]} nodes, 8 workers {counts[1]}.")


CHECKS = (
    zero_stays_zero,
    stays_finite,
    is_nonexpansive,
    error_is_bounded,
    commutes_with_sum,
    aggregates_the_sum,
    consensus_is_among_the_sent,
    exact_parts_are_named,
    element_parts_are_elements,
    is_lossless,
    is_elementwise,
    is_homogeneous,
    any_order_of_workers,
)
SLOW_CHECKS = (is_unbiased, graph_does_not_grow)
