"""Memories that break their contract, each in one way.

`MEMORY_LIES` lists them: the class, the check that finds the lie, and what the check says.
"""

import dataclasses

import tensorflow as tf

from grace_tf.memories.residual import Residual

MEMORY_LIES = []


def memory_lie(check, words):
    def add(cls):
        MEMORY_LIES.append((dataclasses.dataclass(frozen=True)(cls), check, words))
        return cls

    return add


class TwoLeaves(Residual):
    """Honest, with another leaf that stays as it is."""

    by_rows = True

    def init_state(self, spec):
        return {name: tf.zeros(spec.shape) for name in ("residual", "other")}

    def settle(self, carry, sent, total, state, ctx):
        return total, {"residual": carry - sent, "other": state["other"]}

    def store(self, states, ctx):
        return states

    def load(self, stored, specs):
        return stored


@memory_lie("memory lists are its variables", "settle_list and settle differ")
class ListOfItsOwn(TwoLeaves):
    """Settles lists otherwise."""

    def settle_list(self, carries, sent, totals, states, ctx):
        return list(totals), list(states)


@memory_lie("memory lists are its variables", r"is float32 of shape \(\) in init_state")
class ScalarLeaf(TwoLeaves):
    """Has a leaf of another shape."""

    by_rows = False

    def init_state(self, spec):
        return {"residual": tf.zeros(spec.shape), "other": tf.zeros([])}


@memory_lie("memory goes by rows", "gives rows alone other values")
class ClippedByRows(TwoLeaves):
    """Scales by the norm of whatever it gets."""

    def compensate(self, x, state, ctx):
        compensated = (x + state["residual"]) / tf.norm(x)
        return compensated, compensated


@memory_lie("memory goes by rows", "settle does not return total as it is")
class ServerByRows(TwoLeaves):
    """Gives the optimizer a state of all workers."""

    def settle(self, carry, sent, total, state, ctx):
        server = state["other"] + total
        return server, {"residual": carry - sent, "other": server}


@memory_lie("memory goes by rows", "claims by_rows and needs_every_row")
class MomentumByRows(TwoLeaves):
    """Claims what cannot be together."""

    needs_every_row = True


@memory_lie("memory goes by rows", "its store or load changes something")
class HalvesByRows(TwoLeaves):
    """Stores rows in fewer bits."""

    def store(self, states, ctx):
        return [{k: tf.cast(leaf, tf.float16) for k, leaf in state.items()} for state in states]

    def load(self, stored, specs):
        return [{k: tf.cast(leaf, tf.float32) for k, leaf in state.items()} for state in stored]


@memory_lie("memory comes back", "of the stored leaf 'residual' is .* off")
class LoadsHalf(HalvesByRows):
    """Stores half of what it holds."""

    by_rows = False

    def store(self, states, ctx):
        return super().store([{k: leaf / 2 for k, leaf in state.items()} for state in states], ctx)


@memory_lie("memory comes back", "load makes .*'float16'.* of the leaf 'residual'")
class LoadsHalves(HalvesByRows):
    """Loads what it stored as it is."""

    by_rows = False

    def load(self, stored, specs):
        return stored


@memory_lie("memory comes back", "store returns a state with the leaves residual, other")
class ForgetsALeaf(TwoLeaves):
    """Stores one leaf alone."""

    by_rows = False

    def store(self, states, ctx):
        return [{"residual": state["residual"]} for state in states]


@memory_lie("memory comes back", "'other' depends on other leaves")
class MixesLeaves(TwoLeaves):
    """Stores a little of one leaf in the other."""

    by_rows = False

    def store(self, states, ctx):
        return [{**s, "other": s["other"] + s["residual"] * 2**-10} for s in states]


@memory_lie("memory comes back", "otherwise beside other variables")
class MixesVariables(TwoLeaves):
    """Stores the first variable with more digits than the others."""

    by_rows = False

    def store(self, states, ctx):
        first, *others = states
        rounded = [{k: tf.round(leaf * 4096) / 4096 for k, leaf in s.items()} for s in others]
        return [first, *rounded]


@memory_lie("memory comes back", "A state of zeros does not come back")
class NeverZero(TwoLeaves):
    """Loads zeros as a small number."""

    by_rows = False

    def load(self, stored, specs):
        return [{k: tf.maximum(leaf, 1e-6) for k, leaf in state.items()} for state in stored]


@memory_lie("memory comes back", "load changes a float32 state")
class KnowsItsOwnFormAlone(HalvesByRows):
    """Stores bits in another dtype, and reads float32 states of older files as bits."""

    by_rows = False

    def store(self, states, ctx):
        return [{k: tf.bitcast(leaf, tf.int32) for k, leaf in state.items()} for state in states]

    def load(self, stored, specs):
        def of(leaf):
            return tf.bitcast(leaf, tf.float32) if leaf.dtype == tf.int32 else tf.zeros_like(leaf)

        return [{k: of(leaf) for k, leaf in state.items()} for state in stored]
