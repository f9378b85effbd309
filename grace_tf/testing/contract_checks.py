"""Checks of the contract of a compressor, in the order in which a step uses it.

Each check needs the earlier ones: where one fails, it names the cause and no later one runs.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import tensorflow as tf

from grace_tf.core import registry
from grace_tf.core.context import Context
from grace_tf.core.rounds import GATHERED, REDUCED
from grace_tf.core.then import Then
from grace_tf.testing import cases
from grace_tf.testing.arrays import same_bits
from grace_tf.testing.belongings import belongings, unchanged
from grace_tf.testing.subject import NOT_CLAIMED, SIZE, Finding, Subject, Verdict, demand

_TRAITS = (
    *("unbiased", "nonexpansive", "commutes_with_sum", "lossless", "homogeneous", "fixed_size"),
    "elementwise",
    "recompressible",
)


def constructs(s: Subject) -> None:
    """a frozen, hashable value with well-formed traits, whose spec builds an equal one"""
    c = s.compressor
    demand(
        isinstance(c, Then) or "name" in vars(type(c)),
        f"{type(c).__name__} is not registered: decorate it with @grace_tf.register(name).",
    )
    frozen = dataclasses.is_dataclass(c) and c.__dataclass_params__.frozen
    demand(frozen, "It is no frozen dataclass: decorate it with @grace_tf.register.")
    try:
        hash(c)
    except TypeError:
        demand(False, "It has no hash: a hyperparameter is a number, a string, a bool or None.")
    for trait in _TRAITS:
        value = getattr(c, trait)
        demand(isinstance(value, bool), f"{trait} is True or False, not {value!r}.")
    demand(
        c.aggregates in ("sum", "consensus"),
        f"aggregates is 'sum' or 'consensus', not {c.aggregates!r}.",
    )
    block = c.block is None or (type(c.block) is int and c.block > 0)
    demand(block, f"block is a positive int or None, not {c.block!r}.")
    whole = c.divides_at is None or (c.block and c.divides_at and c.divides_at % c.block == 0)
    demand(whole, f"divides_at is whole blocks of {c.block}, not {c.divides_at!r}.")
    share = c.row_share is None or (isinstance(c.row_share, (int, float)) and 0 < c.row_share <= 1)
    demand(share, f"row_share is a fraction in (0, 1] or None, not {c.row_share!r}.")
    twin = copy.deepcopy(c)
    demand(twin == c and hash(twin) == hash(c), "A copy of it is not equal or has another hash.")
    rebuilt = registry.get(str(c))
    demand(rebuilt == c, f"Its spec {str(c)!r} builds {rebuilt!r} instead of {c!r}.")
    demand(str(rebuilt) == str(c), f"Its spec changes from {str(c)!r} to {str(rebuilt)!r}.")


def wire_is_static(s: Subject) -> None:
    """wire(spec) gives parts of rank 1, static size and a dtype that travels, every time"""
    c = s.compressor
    kinds = _dtypes(s)
    for shape in s.shapes:
        spec = tf.TensorSpec(shape, tf.float32)
        parts = c.wire(spec)
        well_formed = isinstance(parts, dict) and all(
            isinstance(name, str) and isinstance(part, tf.TensorSpec)
            for name, part in parts.items()
        )
        demand(well_formed, f"wire returns {{name: tf.TensorSpec}}, not {parts!r}.")
        for name, part in parts.items():
            demand(
                part.shape.rank == 1 and part.shape.is_fully_defined(),
                f"Shape {shape}: the part {name!r} has the shape {part.shape} in wire; "
                "a part has one axis of a static length.",
            )
            demand(
                part.dtype.name in kinds,
                f"The part {name!r} is {part.dtype.name}; a part that is {_carried(s)} "
                f"is one of {', '.join(kinds)}.",
            )
        demand(
            described(c.wire(spec)) == described(parts),
            f"Shape {shape}: two calls of wire give {described(parts)} "
            f"and {described(c.wire(spec))}.",
        )
        padded = sum(-(-p.shape[0] * p.dtype.size // 4) * 4 for p in parts.values())
        found = c.nbytes(spec)
        demand(found == padded, f"Shape {shape}: nbytes says {found}, its parts take {padded}.")
    known = set(c.wire(tf.TensorSpec(cases.MAIN, tf.float32)))
    for trait in ("exact_parts", "element_parts"):
        lost = sorted(set(getattr(c, trait)) - known) if c.one_round else []
        demand(not lost, f"{trait} names {', '.join(lost)}; wire has {', '.join(sorted(known))}.")


def _dtypes(s: Subject) -> tuple[str, ...]:
    if not s.compressor.one_round:
        return tuple(dict.fromkeys(REDUCED + GATHERED))
    return REDUCED if s.compressor.commutes_with_sum else GATHERED


def _carried(s: Subject) -> str:
    if not s.compressor.one_round:
        return "sent"
    return "all-reduced" if s.compressor.commutes_with_sum else "gathered"


def described(parts: dict[str, Any]) -> str:
    """Names, dtypes and sizes of the parts in one line: values float32[8], …"""
    return ", ".join(
        f"{name} {tf.as_dtype(part.dtype).name}{list(part.shape)}"
        for name, part in sorted(parts.items())
    )


def state_starts_alike(s: Subject) -> None:
    """init_state gives the same tensors on every worker and every time"""
    for shape in s.shapes:
        first, again = s.first_state(shape), s.first_state(shape)
        demand(
            all(tf.is_tensor(value) for value in first.values()),
            f"Shape {shape}: init_state returns {{name: tensor}}, not {first!r}.",
        )
        same = set(first) == set(again) and all(
            same_bits(first[leaf].numpy(), again[leaf].numpy()) for leaf in first
        )
        demand(same, "Two calls of init_state give different states: workers would not agree.")


def wire_is_true(s: Subject) -> None:
    """payloads have the parts, dtypes and sizes that wire(spec) announces, on every step"""
    c = s.compressor
    trials = [*((shape, 0) for shape in s.shapes), *((cases.MAIN, step) for step in (0, 1, 2))]
    for shape, step in trials if c.one_round else ():
        payload = _compress(s, shape, step)
        well_formed = isinstance(payload, dict) and all(map(tf.is_tensor, payload.values()))
        demand(well_formed, f"compress returns {{name: tensor}}, not {payload!r}.")
        _compare(s, shape, payload, f"Shape {shape}, step {step}")


def _compare(s: Subject, shape: tuple[int, ...], payload: dict[str, Any], where: str) -> None:
    announced = described(s.compressor.wire(tf.TensorSpec(shape, tf.float32)))
    found = described(payload)
    demand(found == announced, f"{where}: wire says {announced}; the payload is {found}.")


def _compress(s: Subject, shape: tuple[int, ...], step: int = 0) -> dict[str, tf.Tensor]:
    x = tf.constant(cases.normal(shape))
    return s.compressor.compress(x, s.context(shape, worker=0, step=tf.constant(step, tf.int64)))


def shapes_hold(s: Subject) -> None:
    """decompress gives float32 of the gradient's shape, for every shape"""
    for shape in s.shapes if s.compressor.one_round else ():
        found = s.compressor.decompress(_compress(s, shape), s.context(shape))
        demand(tf.is_tensor(found), f"decompress returns {type(found).__name__}, not a tensor.")
        _demand_form(found, shape, "decompress returns")


def _demand_form(found: Any, shape: tuple[int, ...], what: str) -> None:
    form = (tuple(found.shape), tf.as_dtype(found.dtype).name)
    demand(
        form == (shape, "float32"),
        f"{what} {form[1]} of shape {form[0]} for a gradient of shape {shape}; "
        "it must be float32 of that shape.",
    )


def sums_decode(s: Subject) -> Verdict:
    """commutes_with_sum: the sum of two workers' payloads is decoded without an error"""
    c = s.compressor
    if not c.commutes_with_sum or not c.one_round:
        return NOT_CLAIMED
    for shape in s.shapes:
        payload = _compress(s, shape)
        try:
            c.decompress({name: part + part for name, part in payload.items()}, s.context(shape))
        except Exception as error:
            sentence = (
                f"It claims commutes_with_sum, but of the sum of two payloads {s.described(error)}"
            )
            raise Finding(sentence) from error
    return None


def rounds_agree(s: Subject) -> None:
    """two workers ask for the same rounds and get what has the gradient's shape"""
    for shape, outcome in s.by_shape.items():
        for what in ("totals", "sent"):
            for tensor in outcome[what]:
                _demand_form(tensor, shape, f"{_NAMES[what]} is")
        for payload in outcome["payloads"]:
            _compare(s, shape, payload, f"Shape {shape}")


_NAMES = {"totals": "The aggregate", "sent": "What a worker sent"}


def keeps_nothing(s: Subject) -> None:
    """a result depends on gradient, state and context alone: nothing is kept from call to call"""
    first, other = s.gradients, s.gradients[::-1] * 2
    s.run(first, eager=True)  # fills caches that never change afterwards, such as tables
    before = belongings(s.stages)
    results = [s.run(x, eager=True) for x in (first, other, first)]
    after = belongings(s.stages)
    for name in sorted({*before, *after}):
        same = name in before and name in after and unchanged(before[name], after[name])
        demand(same, f"A step changes {name}. State goes through init_state and rounds instead.")
    for part in ("payloads", "totals", "sent"):
        same = all(_same(a, b) for a, b in zip(results[0][part], results[2][part]))
        demand(
            same,
            f"The same call gives other {part} the second time: something is kept between calls, "
            "or random numbers come from elsewhere than ctx.key() and ctx.shared_key().",
        )


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return all(same_bits(a[name], b[name]) for name in a)
    return same_bits(a, b)


def traces(s: Subject) -> None:
    """it runs inside a tf.function, where gradients and the step are symbolic; traced once"""
    s.run(s.gradients, 0)
    before = s.traced.experimental_get_tracing_count()
    states = s.run(s.gradients, 1)["states"]
    s.run(s.gradients[::-1], 2, states)
    traced = s.traced.experimental_get_tracing_count() - before
    demand(traced == 0, f"{traced} of two further steps traced anew.")


def state_keeps_its_form(s: Subject) -> None:
    """state leaves keep names, shapes and dtypes from step to step"""
    first = s.first_state(cases.MAIN)
    for states in s.run(s.gradients, eager=True)["states"]:
        demand(set(states) == set(first), f"State leaves {sorted(first)} become {sorted(states)}.")
        for leaf, value in states.items():
            found = (value.shape, value.dtype.name)
            wanted = (tuple(first[leaf].shape), first[leaf].dtype.name)
            demand(found == wanted, f"The state {leaf!r} changes from {wanted} to {found}.")


def lanes_stand_alone(s: Subject) -> None:
    """a group of lanes of unequal shapes gives what each lane gives alone, bit for bit"""
    shapes = ((5,), (67, 71), (33,), ())
    xs = [[tf.constant(cases.normal(shape, 40 + w)) for shape in shapes] for w in range(SIZE)]
    together = s.run_group(xs, [_group(s, shapes, w) for w in range(SIZE)])
    demand(
        all(len(mine) == len(shapes) for column in together for mine in column),
        f"rounds returns one aggregate, one sent and one state per lane: {len(shapes)} of each.",
    )
    for i, shape in enumerate(shapes):
        alone = s.run_group(
            [[mine[i]] for mine in xs], [_group(s, shapes, w).lane(i) for w in range(SIZE)]
        )
        for w in range(SIZE):
            for what in (0, 1):
                same = same_bits(together[what][w][i].numpy(), alone[what][w][0].numpy())
                demand(same, f"Beside other lanes a gradient of shape {shape} is sent differently.")


def _group(s: Subject, shapes: tuple[tuple[int, ...], ...], worker: int) -> Context:
    specs = tuple(tf.TensorSpec(shape, tf.float32) for shape in shapes)
    variables = tuple(range(3, 3 + len(shapes)))
    return dataclasses.replace(s.context((), worker), specs=specs, variables=variables)


CHECKS = (
    constructs,
    wire_is_static,
    state_starts_alike,
    wire_is_true,
    shapes_hold,
    sums_decode,
    rounds_agree,
    state_keeps_its_form,
    keeps_nothing,
    traces,
    lanes_stand_alone,
)
