"""A compressor under test, on several workers; keeps traces and outcomes for all checks."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pathlib
import re
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from grace_tf.core.compressor import Compressor
from grace_tf.core.context import SHARED, Context
from grace_tf.core.memory import Memory
from grace_tf.core.then import Then
from grace_tf.testing import cases
from grace_tf.testing.workers import RoundsResult, Workers, run_rounds

SIZE = 3  # workers
SEED = 7
VARIABLE = 5
Verdict = str | None  # what a check returns: why there was nothing to check, or None
NOT_CLAIMED = "not claimed"
LINE_SHAPES = ((32, 16), (33,))  # the shapes for checks of the whole line


class Finding(AssertionError):
    """A failed check, in a sentence for the author of the compressor."""


def demand(condition: Any, sentence: str) -> None:
    """Raises Finding with the sentence unless the condition holds."""
    if not condition:
        raise Finding(sentence)


@dataclasses.dataclass(frozen=True)
class WatchedContext(Context):
    """A context that notes which random streams were opened: "private" or "shared"."""

    drawn: list = dataclasses.field(default_factory=list, compare=False)

    def _key(self, worker: Any):
        shared = isinstance(worker, int) and worker == SHARED
        self.drawn.append("shared" if shared else "private")
        return super()._key(worker)


class Subject:
    """A compressor and its default memory, with cached results that several checks use."""

    def __init__(self, compressor: Compressor, memory: Memory, quick: bool = False) -> None:
        self.compressor = compressor
        self.memory = memory
        self.shapes = cases.QUICK_SHAPES if quick else cases.SHAPES
        self.quick = quick
        self.traced = tf.function(self._run, autograph=False)

    def context(
        self, shape: Sequence[int], worker: Any = None, step: Any = 0, size: int = SIZE
    ) -> Context:
        """The context of one lane of this shape; public without a worker."""
        spec = tf.TensorSpec(shape, tf.float32)
        return Context((spec,), (VARIABLE,), step, SEED, size, worker)

    @property
    def stages(self) -> list[Compressor]:
        """The compressor in a list; of a composite its outer and inner compressors."""
        c = self.compressor
        return [c.outer, *(stage for _, stage in c.inner)] if isinstance(c, Then) else [c]

    def described(self, error: Exception) -> str:
        """An error in one line: its place in the author's own files, and its message."""
        owners = [owner for stage in self.stages for owner in type(stage).__mro__[:-1]]
        files = {inspect.getsourcefile(o) for o in owners if o is not Compressor}
        frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
        text = str(error)
        if "[[{{node" in text:  # raised by a node of a graph; the message names the node's origin
            text = text.partition("[[{{node")[0].rstrip()
            frames += re.findall(r'File "([^"]+)", line (\d+), in (\w+)', text)
            text = text.rpartition("\n")[2]
        text = re.sub(r"\{\{function_node [^}]*\}\} | \[Op:\w+\]", "", text)
        authors = [frame for frame in frames if frame[0] in files]
        place = ""
        if authors:
            file, line, function = authors[-1]
            place = f"{function} ({pathlib.Path(file).name}, line {line}) raises "
        said = " ".join(text.split()) or "no reason given"
        return f"{place}{type(error).__name__}: {said}"[:400]

    def nbytes(self, shape: Sequence[int]) -> int:
        """The announced bytes for a float32 tensor of this shape."""
        return self.compressor.nbytes(tf.TensorSpec(shape, tf.float32))

    def first_state(self, shape: Sequence[int]) -> dict[str, tf.Tensor]:
        context = self.context(shape)
        return dict(self.compressor.init_state(context.spec, context))

    def run_group(
        self, xs: Sequence[Sequence[tf.Tensor]], contexts: Sequence[Context]
    ) -> tuple[list[list[tf.Tensor]], list[list[tf.Tensor]], list]:
        """(totals, sent, states) of one eager step of a lane group, each `[worker][lane]`."""
        public = contexts[0].public()
        lanes = [public.lane(i) for i in range(len(public))]
        states = [dict(self.compressor.init_state(lane.spec, lane)) for lane in lanes]
        outcome = run_rounds(self.compressor, xs, [states] * len(xs), contexts)
        return outcome.totals, outcome.sent, outcome.states

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
        return tf.nest.map_structure(lambda t: np.asarray(t.numpy()), result)

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
        """The largest magnitude to try: 1e30, or less for narrow floats on the wire."""
        return min([1e30, *(float(d.max) / 64 for d in self.floats)])

    @functools.cached_property
    def by_shape(self) -> dict[tuple[int, ...], dict[str, list]]:
        """Eager outcomes of two workers, by shape."""
        return {
            shape: self.run(np.stack([cases.normal(shape, w) for w in range(2)]), eager=True)
            for shape in self.shapes
        }

    @functools.cached_property
    def ladder(self) -> list[tuple[int, np.ndarray, dict[str, list]]]:
        """(n, gradients `[2, n]`, eager outcome) of two workers, by growing length."""
        lengths = cases.QUICK_LADDER if self.quick else cases.LADDER
        rungs = []
        for n in lengths:
            x = np.stack([cases.away_from_zero((n,), 60 + w) for w in range(2)])
            rungs.append((n, x, self.run(x, eager=True)))
        return rungs

    @functools.cached_property
    def draws(self) -> dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]]:
        """By shape: normal gradients of one worker and what it sent, both `[steps, n]`."""
        return {
            shape: self._draw(shape) for shape in (cases.QUICK_ODD if self.quick else cases.ODD)
        }

    def _draw(self, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Runs steps until every element was sent often enough, at most 4096."""
        many = tf.function(self._many, autograph=False)
        state, n = self.first_state(shape), int(np.prod(shape))
        xs, sents = np.empty((0, n), np.float32), np.empty((0, n), np.float32)
        for first in range(0, 4096, 256):
            rows = cases.normal((256, *shape), 900 + first)
            sent, state = many(tf.constant(rows), state, tf.constant(first, tf.int64))
            xs = np.concatenate([xs, rows.reshape(256, n)])
            sents = np.concatenate([sents, sent.numpy().reshape(256, n)])
            enough = cases.evidence(xs, sents).min() >= 6
            if enough and len(xs) >= (1024 if self.compressor.unbiased else 256):
                break
            if len(xs) == 512 and np.count_nonzero(sents) < 4 * n:
                break  # 4096 steps would not be enough
        return xs, sents

    def _many(self, xs: tf.Tensor, state: dict, first: tf.Tensor) -> tuple[tf.Tensor, dict]:
        def body(i, sent, state):
            outcome = self._run(xs[i][None], [state], first + tf.cast(i, tf.int64))
            return i + 1, sent.write(i, outcome["sent"][0]), outcome["states"][0]

        steps = xs.shape[0]
        sent = tf.TensorArray(tf.float32, steps, element_shape=xs.shape[1:])
        _, sent, state = tf.while_loop(
            lambda i, *_: i < steps, body, (tf.constant(0), sent, state), parallel_iterations=1
        )
        return sent.stack(), state

    @functools.cached_property
    def gradients(self) -> np.ndarray:
        """One normal gradient a worker, `[SIZE, *MAIN]`."""
        return np.stack([cases.normal(cases.MAIN, w) for w in range(SIZE)])

    @functools.cached_property
    def usual(self) -> dict[str, list]:
        """The outcome of a step with `gradients`."""
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

    @property
    def trial_outcomes(self) -> list[tuple[str, dict[str, list]]]:
        """(case, outcome), once for all workers of a run."""
        return [(name, outcome) for name, _, outcome, worker in self.trials if worker == 0]

    @property
    def pairs(self) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """(case, gradient, what was sent of it) for all gradients tried."""
        for name, x, outcome, worker in self.trials:
            yield name, x, outcome["sent"][worker]
        for n, x, outcome in self.ladder:
            yield f"{n} elements", x[0], outcome["sent"][0]
        for shape, (xs, sents) in self.draws.items():
            for x, sent in zip(xs[:64], sents):
                yield f"shape {shape}", x, sent

    @functools.cached_property
    def line(self) -> tuple[Workers, dict[str, np.ndarray]]:
        """Workers that send LINE_SHAPES down the line, and their state before the first step."""
        workers = Workers(SIZE, self.compressor, memory=self.memory, seed=SEED)
        workers.prepare([tf.zeros(shape) for shape in LINE_SHAPES])
        return workers, workers.state.arrays()

    def fresh_line(self) -> Workers:
        """The same workers, reset to their state before the first step."""
        workers, start = self.line
        workers.state.restore(start)
        return workers


def _epsilon(dtype: tf.DType) -> float:
    kind, epsilon = dtype.as_numpy_dtype, 1.0
    while kind(1 + epsilon / 2) != kind(1):
        epsilon /= 2
    return epsilon


def _first_lane(outcome: RoundsResult) -> dict[str, list]:
    workers = range(len(outcome.totals))
    return {
        "totals": [outcome.totals[w][0] for w in workers],
        "sent": [outcome.sent[w][0] for w in workers],
        "states": [dict(outcome.states[w][0]) for w in workers],
        "payloads": [outcome.payload(w) for w in workers],
    }
