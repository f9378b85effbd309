"""Checks of a compressor's default memory: its actions on lists and rows, its store and load."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from grace_tf.core.context import Context
from grace_tf.core.memory import State
from grace_tf.testing import cases
from grace_tf.testing.arrays import same_bits
from grace_tf.testing.subject import NOT_CLAIMED, Subject, Verdict, demand

_SHAPES = ((40, 30), (7,), ())
_ROWS = (3, 0, 39, 17)  # of the first shape
_LOST = 1 / 16  # of the norm may be lost; storing similar numbers in 8 bits loses a hundredth


def _group(s: Subject) -> Context:
    specs = tuple(tf.TensorSpec(shape, tf.float32) for shape in _SHAPES)
    ctx = s.context(_SHAPES[0], worker=0, step=tf.constant(3, tf.int64))
    return dataclasses.replace(ctx, specs=specs, variables=tuple(range(len(specs))))


def _tensors(seed: int) -> list[tf.Tensor]:
    return [tf.constant(cases.normal(shape, seed + i)) for i, shape in enumerate(_SHAPES)]


def _states(s: Subject, ctx: Context) -> list[State]:
    """States as a step might leave them: positive, since a leaf may be a variance."""
    firsts = [s.memory.init_state(spec) for spec in ctx.specs]
    for first, spec in zip(firsts, ctx.specs):
        for name, leaf in first.items():
            form = (tf.as_dtype(leaf.dtype).name, tuple(leaf.shape))
            demand(
                form == ("float32", tuple(spec.shape)),
                f"The leaf {name!r} of a variable of shape {spec.shape} is {form[0]} of shape "
                f"{form[1]} in init_state; it must be float32 of the variable's shape.",
            )
    names = [*firsts[0]]
    return [
        {name: tf.abs(_tensors(200 + 10 * j)[i]) for j, name in enumerate(names)}
        for i in range(len(_SHAPES))
    ]


def _equal(a: Any, b: Any) -> bool:
    """Whether two nests have the same structure and hold the same bits."""
    try:
        tf.nest.assert_same_structure(a, b)
    except (TypeError, ValueError):
        return False
    pairs = zip(tf.nest.flatten(a), tf.nest.flatten(b))
    return all(same_bits(np.asarray(x), np.asarray(y)) for x, y in pairs if x is not None)


def memory_lists_are_its_variables(s: Subject) -> None:
    """compensate_list and settle_list of the memory give what it gives for each variable"""
    memory, ctx = s.memory, _group(s)
    xs, sent, totals, states = _tensors(0), _tensors(20), _tensors(40), _states(s, ctx)
    compensated, carries = memory.compensate_list(xs, states, ctx)
    settled = memory.settle_list(carries, sent, totals, states, ctx)
    for i in range(len(xs)):
        lane = ctx.lane(i)
        x, carry = memory.compensate(xs[i], states[i], lane)
        same = _equal(x, compensated[i])
        demand(same, f"compensate_list and compensate differ for the shape {_SHAPES[i]}.")
        wanted = memory.settle(carry, sent[i], totals[i], states[i], lane)
        same = _equal(tuple(wanted), (settled[0][i], settled[1][i]))
        demand(same, f"settle_list and settle differ for the shape {_SHAPES[i]}.")


def memory_goes_by_rows(s: Subject) -> Verdict:
    """by_rows: the memory gives for some rows what it gives for them in the whole variable"""
    memory, ctx = s.memory, _group(s).lane(0)
    if not memory.by_rows:
        return NOT_CLAIMED
    demand(not memory.needs_every_row, "The memory claims by_rows and needs_every_row.")
    (state, *_), x, sent = _states(s, _group(s)), _tensors(0)[0], _tensors(20)[0]

    def step(take: Any) -> tuple[tf.Tensor, State]:
        own = {name: take(leaf) for name, leaf in state.items()}
        compensated, carry = memory.compensate(take(x), own, ctx)
        total = take(x)
        aggregate, after = memory.settle(carry, take(sent), total, own, ctx)
        same = _equal(aggregate, total)
        demand(same, "The memory claims by_rows, but settle does not return total as it is.")
        return compensated, after

    rows = lambda tensor: tf.gather(tensor, _ROWS)  # noqa: E731
    compensated, after = step(lambda tensor: tensor)
    wanted = rows(compensated), {name: rows(leaf) for name, leaf in after.items()}
    demand(
        _equal(wanted, step(rows)),
        "The memory claims by_rows, but gives rows alone other values than rows of the whole.",
    )
    stored = memory.store([state], ctx.stored())
    same = _equal(list(stored), [state]) and _equal(list(memory.load(stored, [ctx.spec])), [state])
    demand(same, "The memory claims by_rows, but its store or load changes something.")
    return None


def memory_comes_back(s: Subject) -> Verdict:
    """load undoes store, which keeps each leaf of each variable by itself"""
    memory, ctx = s.memory, _group(s)
    states = _states(s, ctx)
    if not states[0]:
        return "its memory keeps nothing"
    specs = list(ctx.specs)
    stored = list(memory.store(states, ctx.stored()))
    _demand_form(states, stored, "store")
    loaded = list(memory.load(stored, specs))
    _demand_form(states, loaded, "load")
    for state, back in zip(states, loaded):
        for name, leaf in state.items():
            form = (back[name].dtype.name, tuple(back[name].shape))
            wanted = ("float32", tuple(leaf.shape))
            demand(form == wanted, f"load makes {form} of the leaf {name!r}, which is {wanted}.")
            off = np.linalg.norm(back[name].numpy() - leaf.numpy())
            demand(
                off <= _LOST * np.linalg.norm(leaf.numpy()),
                f"What load makes of the stored leaf {name!r} is {off:.3g} off.",
            )
    zeros = [{name: tf.zeros_like(leaf) for name, leaf in state.items()} for state in states]
    same = _equal(list(memory.load(memory.store(zeros, ctx.stored()), specs)), zeros)
    demand(same, "A state of zeros does not come back as zeros: the first step would not be true.")
    same = _equal(list(memory.load(states, specs)), states)
    demand(same, "load changes a float32 state, as an older file may hold it.")
    for i, state in enumerate(states):
        (alone,) = memory.store([state], ctx.stored().lane(i))
        demand(_equal(alone, stored[i]), "store keeps a variable otherwise beside other variables.")
    for name in states[0]:
        others = [{**zero, name: state[name]} for zero, state in zip(zeros, states)]
        found = memory.store(others, ctx.stored())
        same = all(_equal(a[name], b[name]) for a, b in zip(found, stored))
        demand(same, f"What is stored of the leaf {name!r} depends on other leaves.")
    return None


def _demand_form(states: Sequence[State], found: Sequence[State], what: str) -> None:
    same = [set(state) for state in found] == [set(state) for state in states]
    names = ", ".join(states[0])
    demand(same, f"{what} returns a state with the leaves {names} for each variable.")


CHECKS = (
    memory_lists_are_its_variables,
    memory_goes_by_rows,
    memory_comes_back,
)
