"""Checks of a compressor on the whole line: several workers, its default memory, several steps."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from grace_tf.testing import cases
from grace_tf.testing.arrays import same_bits
from grace_tf.testing.subject import LINE_SHAPES, SIZE, Subject, Verdict, demand
from grace_tf.testing.workers import Workers

_TOY_STEPS = 1000
_TOY_RATE = 0.005


def _gradients(step: int) -> list[list[np.ndarray]]:
    return [
        [cases.normal(shape, 1000 * step + 10 * w + i) for i, shape in enumerate(LINE_SHAPES)]
        for w in range(SIZE)
    ]


def _numpy(results: list[list[tf.Tensor]]) -> list[list[np.ndarray]]:
    return [[t.numpy() for t in mine] for mine in results]


def same_on_all_workers(s: Subject) -> None:
    """all workers end every step with the same bits: aggregates and the compressor's state"""
    workers = s.fresh_line()
    for step in range(3):
        results = _numpy(workers(_gradients(step)))
        for other in results[1:]:
            same = all(same_bits(a, b) for a, b in zip(results[0], other))
            demand(same, f"On step {step} two workers get different aggregates.")
    for name, rows in workers.state.arrays().items():
        if "/compressor/" in name:
            same = all(same_bits(rows[0], other) for other in rows[1:])
            demand(same, f"The state {name} is not the same on every worker.")


def bytes_are_handed(s: Subject) -> None:
    """what is handed to collectives is what group_nbytes announces, and one flag"""
    workers = s.fresh_line()
    workers(_gradients(0))
    specs = [tf.TensorSpec(shape, tf.float32) for shape in LINE_SHAPES]
    wanted = [spec for spec in specs if s.compressor.wants(spec)]
    announced = s.compressor.group_nbytes(wanted)
    announced += sum(4 * spec.shape.num_elements() for spec in specs if spec not in wanted)
    slack = 4 * len(s.compressor.wires(specs[:1])[0])  # summed 16-bit parts need no padding
    handed = workers.bytes_per_step
    demand(
        announced - slack <= handed <= announced + 4,
        f"{announced} bytes are announced, {handed} handed over.",
    )


def nothing_is_lost(s: Subject) -> Verdict:
    """with a residual: compensated = sent + residual, exactly where sent is 0 or the value"""
    memory = s.memory
    if not memory.requires_nonexpansive:
        return "its memory keeps no residual"
    if memory.has_momentum:
        return "its memory adds a momentum"
    if memory.forgets:
        return "its memory forgets or filters a part"
    spec = tf.TensorSpec(cases.MAIN, tf.float32)
    memories = [memory.init_state(spec) for _ in range(SIZE)]
    ctx = s.context(cases.MAIN)
    states, zero = None, tf.zeros(cases.MAIN)
    for step in range(3):
        grads = [tf.constant(cases.normal(cases.MAIN, 50 + 10 * step + w)) for w in range(SIZE)]
        pairs = [memory.compensate(g, m, ctx) for g, m in zip(grads, memories)]
        compensated = [x for x, _ in pairs]
        outcome = s.run(tf.stack(compensated), step, states)
        memories = [
            memory.settle(carry, tf.constant(y), tf.constant(total), m, ctx)[1]
            for (_, carry), y, total, m in zip(pairs, outcome["sent"], outcome["totals"], memories)
        ]
        states = outcome["states"]
        for x, y, m in zip(compensated, outcome["sent"], memories):
            # With a zero gradient the memory compensates exactly its residual.
            x, residual = x.numpy(), memory.compensate(zero, m, ctx)[0].numpy()
            error = np.abs(x.astype(np.float64) - y - residual)
            exact = (y == 0) | (y == x)
            demand(
                not error[exact].any(), "Of elements sent whole or not at all, something is lost."
            )
            rounding = 2.0**-23 * np.maximum(np.abs(x), np.abs(y))
            demand(
                np.all(error <= rounding), f"compensated − sent − residual is {error.max():.3g}."
            )


def non_finite_is_agreed(s: Subject) -> None:
    """a non-finite gradient makes every aggregate non-finite and leaves state and step alone"""
    expected = _clean_run(s)
    workers = s.fresh_line()
    workers(_gradients(0))
    for lane, value in ((0, np.nan), (1, np.inf), (1, -np.inf)):
        before = workers.state.arrays()
        grads = _gradients(1)
        grads[1][lane].flat[3] = value
        for worker, mine in enumerate(_numpy(workers(grads))):
            finite = any(np.isfinite(total).any() for total in mine)
            demand(
                not finite,
                f"Worker 1 has {value} in lane {lane}, but worker {worker} gets finite values.",
            )
        after = workers.state.arrays()
        changed = [name for name in before if not np.array_equal(before[name], after[name])]
        demand(not changed, f"A step with {value} changes the state {', '.join(changed)}.")
    results = _numpy(workers(_gradients(1)))
    same = all(same_bits(a, b) for a, b in zip(expected[0], results[0]))
    demand(same, "After refused steps the next one gives another result.")


def _clean_run(s: Subject) -> list[list[np.ndarray]]:
    workers = s.fresh_line()
    workers(_gradients(0))
    return _numpy(workers(_gradients(1)))


def converges(s: Subject) -> None:
    """three workers with different data solve a least-squares problem with the default memory"""
    workers: Workers = s.fresh_line()
    wanted = [cases.normal(shape, 70 + i) for i, shape in enumerate(LINE_SHAPES)]
    data = [
        [np.abs(g) for g in mine] for mine in _gradients(9)
    ]  # diagonal curvatures, one set a worker
    weights = [np.zeros(shape, np.float32) for shape in LINE_SHAPES]

    # A momentum makes steps up to ten times as long, less with masking; not those of a vote.
    longer = s.memory.has_momentum and s.compressor.aggregates == "sum"
    rate = np.float32(_TOY_RATE / 5 if longer else _TOY_RATE)

    def loss() -> float:
        return sum(float(np.sum((w - goal) ** 2)) for w, goal in zip(weights, wanted))

    start = loss()
    for _ in range(_TOY_STEPS):
        grads = [[a * (w - goal) for a, w, goal in zip(mine, weights, wanted)] for mine in data]
        mean = workers(grads)[0]
        weights = [w - rate * g.numpy() for w, g in zip(weights, mean)]
    demand(
        loss() < 0.1 * start,
        f"After {_TOY_STEPS} steps the loss is {loss() / start:.2f} of what it was.",
    )


CHECKS = (
    same_on_all_workers,
    bytes_are_handed,
    nothing_is_lost,
    non_finite_is_agreed,
)
SLOW_CHECKS = (converges,)
