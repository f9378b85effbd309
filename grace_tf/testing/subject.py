"""A compressor under test, on several workers; keeps traces and outcomes for all checks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from grace_tf.core.compressor import Compressor
from grace_tf.core.context import SHARED, Context
from grace_tf.core.memory import Memory
from grace_tf.testing import cases
from grace_tf.testing.workers import Outcome, Workers, run_rounds

SIZE = 3  # workers
SEED = 7
VARIABLE = 5
Verdict = Optional[str]  # what a check returns: why there was nothing to check, or None
NOT_CLAIMED = "not claimed"
LINE_SHAPES = ((32, 16), (33,))  # what the checks through the whole line send


def demand(condition: Any, sentence: str) -> None:
    """Raises AssertionError with the sentence unless the condition holds."""
    if not condition:
        raise AssertionError(sentence)


@dataclasses.dataclass(frozen=True)
class WatchedContext(Context):
    """A context that notes which random streams were opened: "private" or "shared"."""

    drawn: list = dataclasses.field(default_factory=list, compare=False)

    def _key(self, worker: Any):
        shared = isinstance(worker, int) and worker == SHARED
        self.drawn.append("shared" if shared else "private")
        return super()._key(worker)


class Subject:
    """A compressor, its default memory, and what they did so far."""

    def __init__(self, compressor: Compressor, memory: Memory, quick: bool = False) -> None:
        self.compressor = compressor
        self.memory = memory
        self.shapes = cases.SHAPES[:5] if quick else cases.SHAPES
        self.quick = quick
        self.traced = tf.function(self._run, autograph=False)

    def context(
        self, shape: Sequence[int], worker: Any = None, step: Any = 0, size: int = SIZE
    ) -> Context:
        """The context of one lane of this shape; public without a worker."""
        spec = tf.TensorSpec(shape, tf.float32)
        return Context((spec,), (VARIABLE,), step, SEED, size, worker)

    def first_state(self, shape: Sequence[int]) -> dict[str, tf.Tensor]:
        context = self.context(shape)
        return dict(self.compressor.init_state(context.spec, context))

    def _run(self, xs: tf.Tensor, states: list, step: tf.Tensor) -> dict[str, list]:
        size, shape = xs.shape[0], xs.shape[1:]
        contexts = [self.context(shape, w, step, size) for w in range(size)]
        outcome = run_rounds(
            self.compressor, [[x] for x in tf.unstack(xs)], [[s] for s in states], contexts
        )
        return _first_lane(outcome)

    def run(
        self, xs: Any, step: int = 0, states: list | None = None, eager: bool = False
    ) -> dict[str, list]:
        """One step of as many workers as xs has rows; returns NumPy arrays.

        By worker: "totals", "sent", "states", "payloads".
        """
        xs = tf.convert_to_tensor(xs, tf.float32)
        if states is None:
            states = [self.first_state(xs.shape[1:])] * xs.shape[0]
        run = self._run if eager else self.traced
        result = run(xs, states, tf.constant(step, tf.int64))
        return tf.nest.map_structure(lambda t: t.numpy(), result)

    @functools.cached_property
    def floats(self) -> list[tf.DType]:
        """The float dtypes on the wire."""
        parts = self.compressor.wire(tf.TensorSpec(cases.MAIN, tf.float32)).values()
        return [part.dtype for part in parts if part.dtype.is_floating]

    @property
    def epsilon(self) -> float:
        """Relative rounding of sums on the wire."""
        return max([2.0**-23, *map(_epsilon, self.floats)])

    @property
    def huge(self) -> float:
        """The largest magnitude to try: 1e30, less where the wire's floats hold less."""
        return min([1e30, *(float(d.max) / 64 for d in self.floats)])

    @functools.cached_property
    def by_shape(self) -> dict[tuple[int, ...], dict[str, list]]:
        """Eager outcomes of two workers, by shape."""
        return {
            shape: self.run(np.stack([cases.normal(shape, w) for w in range(2)]), eager=True)
            for shape in self.shapes
        }

    @functools.cached_property
    def gradients(self) -> np.ndarray:
        """One normal gradient a worker, `[SIZE, *MAIN]`."""
        return np.stack([cases.normal(cases.MAIN, w) for w in range(SIZE)])

    @functools.cached_property
    def usual(self) -> dict[str, list]:
        """The outcome of `gradients`."""
        return self.run(self.gradients)

    @functools.cached_property
    def trials(self) -> list[tuple[str, np.ndarray, dict[str, list], int]]:
        """Every adversarial gradient: (name, x, the outcome of its run, the worker that had it)."""
        named = list(cases.adversarial(cases.MAIN, self.huge).items())
        named += [
            (f"normal {i}", cases.normal(cases.MAIN, 100 + i))
            for i in range(-len(named) % SIZE + SIZE)
        ]
        trials = []
        for first in range(0, len(named), SIZE):
            chosen = named[first : first + SIZE]
            outcome = self.run(np.stack([x for _, x in chosen]), step=first)
            trials += [(name, x, outcome, w) for w, (name, x) in enumerate(chosen)]
        return trials

    @functools.cached_property
    def line(self) -> tuple[Workers, dict[str, np.ndarray]]:
        """Workers that send LINE_SHAPES down the line, and their state before the first step."""
        workers = Workers(SIZE, self.compressor, memory=self.memory, seed=SEED)
        workers.prepare([tf.zeros(shape) for shape in LINE_SHAPES])
        return workers, workers.state.arrays()

    def fresh_line(self) -> Workers:
        """The same workers, as before their first step."""
        workers, start = self.line
        workers.state.restore(start)
        return workers


def _epsilon(dtype: tf.DType) -> float:
    kind, epsilon = dtype.as_numpy_dtype, 1.0
    while kind(1 + epsilon / 2) != kind(1):
        epsilon /= 2
    return epsilon


def _first_lane(outcome: Outcome) -> dict[str, list]:
    workers = range(len(outcome.totals))
    return {
        "totals": [outcome.totals[w][0] for w in workers],
        "sent": [outcome.sent[w][0] for w in workers],
        "states": [dict(outcome.states[w][0]) for w in workers],
        "payloads": [outcome.payload(w) for w in workers],
    }
