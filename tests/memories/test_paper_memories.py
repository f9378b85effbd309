"""Memories of the papers, ours and some written here, and ten lines of NumPy for each.

They show what a memory can say: state of this worker's own, a server state that all workers hold
alike, masks of what was sent, norms, the step, dense lanes.  Three workers take 20 steps on a
matrix, which is compressed, and a vector, which is not.
"""

import contextlib
import dataclasses
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.core import registry
from grace_tf.memories.dgc import MomentumCorrection
from grace_tf.memories.diana import DIANA
from grace_tf.memories.ef21 import EF21
from grace_tf.memories.lowpass import LowPass
from grace_tf.memories.none import NoMemory
from grace_tf.memories.residual import Residual
from grace_tf.testing import Workers, cases

SIZE, STEPS, RATIO = 3, 20, 0.2
SHAPES = ((12, 10), (7,))


def zeros(*names):
    return lambda self, spec: {name: tf.zeros(spec.shape) for name in names}


@dataclasses.dataclass(frozen=True)
class OneBitAdam(grace_tf.Memory):
    """Tang et al. 2021: the momentum is compressed; the variance is frozen after some steps."""

    beta1: float = 0.9
    beta2: float = 0.99
    frozen_after: int = 8

    init_state = zeros("momentum", "variance", "residual")

    def compensate(self, x, state, ctx):
        momentum = self.beta1 * state["momentum"] + (1 - self.beta1) * x
        compensated = momentum + state["residual"]
        return compensated, compensated

    def settle(self, carry, sent, total, state, ctx):
        learnt = self.beta2 * state["variance"] + (1 - self.beta2) * total**2
        variance = tf.where(ctx.step < self.frozen_after, learnt, state["variance"])
        kept = {"momentum": total, "variance": variance, "residual": carry - sent}
        return total / (tf.sqrt(variance) + 1e-3), kept


# The same in NumPy.  Each takes the workers' gradients of a lane and a dict that lives from step to
# step, and gives what the optimizer gets; `dense` lanes are those that no method compresses.


def topk(x):
    k = max(1, int(RATIO * x.size))
    out = np.zeros_like(x)
    best = np.argsort(-np.abs(x.ravel()), kind="stable")[:k]
    out.flat[best] = x.flat[best]
    return out


def mean(xs):
    return sum(xs[1:], xs[0]) * np.float32(1 / SIZE)


def of_none(xs, kept, step):
    return mean([topk(x) for x in xs])


def of_residual(xs, kept, step, beta=None):
    rest = kept.setdefault("rest", [0 * x for x in xs])
    xs = [x + r for x, r in zip(xs, rest)]
    sent = [topk(x) for x in xs]
    new = [x - s for x, s in zip(xs, sent)]
    kept["rest"] = new if beta is None else [(1 - beta) * r + beta * n for r, n in zip(rest, new)]
    return mean(sent)


def of_low_pass(xs, kept, step):
    return of_residual(xs, kept, step, np.float32(0.25))


def of_dgc(xs, kept, step):
    u, v = (kept.setdefault(name, [0 * x for x in xs]) for name in "uv")
    limit = 6.0 / SIZE**0.5
    for w, x in enumerate(xs):
        norm = np.sqrt(np.sum(x * x))
        u[w] = np.float32(0.9) * u[w] + (x * np.float32(limit / norm) if norm > limit else x)
        v[w] = v[w] + u[w]
    sent = [topk(x) for x in v]
    for w in range(SIZE):
        u[w], v[w] = u[w] * (sent[w] == 0), v[w] * (sent[w] == 0)
    return mean(sent)


def of_dgc_dense(xs, kept, step):
    kept["u"] = np.float32(0.9) * kept.get("u", 0 * xs[0]) + mean(xs)
    return kept["u"]


def of_ef21(xs, kept, step, alpha=1.0, code=topk):
    alpha = np.float32(alpha)
    own = kept.setdefault("own", [0 * x for x in xs])
    server = kept.get("server", 0 * xs[0])
    sent = [code(x - mine) for x, mine in zip(xs, own)]
    kept["own"] = [mine + alpha * s for mine, s in zip(own, sent)]
    kept["server"] = server + alpha * mean(sent)
    return server + mean(sent)


def of_diana(xs, kept, step):
    return of_ef21(xs, kept, step, 0.25, lambda x: x)


def of_one_bit_adam(xs, kept, step):
    m, variance = kept.get("m", 0 * xs[0]), kept.get("variance", 0 * xs[0])
    rest = kept.setdefault("rest", [0 * x for x in xs])
    xs = [np.float32(0.9) * m + np.float32(0.1) * x + r for x, r in zip(xs, rest)]
    sent = [topk(x) for x in xs]
    kept["rest"], kept["m"] = [x - s for x, s in zip(xs, sent)], mean(sent)
    if step < 8:
        variance = np.float32(0.99) * variance + np.float32(0.01) * kept["m"] ** 2
    kept["variance"] = variance
    return kept["m"] / (np.sqrt(variance) + np.float32(1e-3))


def of_plain(xs, kept, step):
    return mean(xs)


CASES = {
    "none": (NoMemory(), of_none, of_plain),
    "residual": (Residual(), of_residual, of_plain),
    "lowpass": (LowPass(0.25), of_low_pass, of_plain),
    "dgc": (MomentumCorrection(clip=6.0), of_dgc, of_dgc_dense),
    "ef21": (EF21(), of_ef21, of_plain),
    "diana": (DIANA(), of_diana, of_plain),
    "one_bit_adam": (OneBitAdam(), of_one_bit_adam, of_plain),
}


# What is compressed with; DIANA takes unbiased compressors, of which this one draws no numbers.
CODES = {"diana": "exact"}


class Exact(grace_tf.Compressor):
    """Sends all there is."""

    unbiased = True
    commutes_with_sum = True

    def wire(self, spec):
        return {"values": tf.TensorSpec([spec.shape.num_elements()], tf.float32)}

    def compress(self, x, ctx):
        return {"values": tf.reshape(x, [-1])}

    def decompress(self, payload, ctx):
        return tf.reshape(payload["values"], ctx.spec.shape)


@contextlib.contextmanager
def registered(name, memory):
    with mock.patch.dict(registry._MEMORIES), mock.patch.dict(registry._COMPRESSORS):
        if name not in registry._MEMORIES:
            grace_tf.register(name)(type(memory))
        grace_tf.register("exact")(Exact)
        yield


def gradients(step):
    return [
        [cases.normal(shape, 100 * step + 10 * w + i) for i, shape in enumerate(SHAPES)]
        for w in range(SIZE)
    ]


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_memory_says_what_its_paper_says(name, summed):
    memory, of_lane, of_dense = CASES[name]
    with registered(name, memory):
        code = CODES.get(name, f"topk:ratio={RATIO}")
        workers = Workers(SIZE, code, memory=memory, min_elements=10, summed=summed)
        kept = [{}, {}]
        for step in range(STEPS):
            mine = gradients(step)
            given = [[g / np.float32(SIZE) for g in w] for w in mine] if summed else mine
            if summed:
                mine = [[g * np.float32(SIZE) for g in w] for w in given]
            results = [[t.numpy() for t in w] for w in workers(given)]
            for i, formula in enumerate((of_lane, of_dense)):
                wanted = formula([w[i] for w in mine], kept[i], step)
                np.testing.assert_allclose(results[0][i], wanted, rtol=2e-5, atol=1e-6)
                for other in results[1:]:
                    np.testing.assert_array_equal(other[i], results[0][i])


def test_merged_lanes_share_a_memory():
    """One vector of all lanes: the largest of both, and each lane's own part of the residual."""
    workers = Workers(SIZE, f"topk:ratio={RATIO}", granularity="model")
    kept = {}
    for step in range(STEPS):
        mine = gradients(step)
        # Lanes are merged in backward order.
        flat = [np.concatenate([w[1].ravel(), w[0].ravel()]) for w in mine]
        wanted = of_residual(flat, kept, step)
        vector, matrix = np.split(wanted, [SHAPES[1][0]])
        results = [t.numpy() for t in workers(mine)[2]]
        np.testing.assert_allclose(results[0], matrix.reshape(SHAPES[0]), rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(results[1], vector, rtol=2e-5, atol=1e-6)
    rest = workers.state.arrays()
    kept = np.concatenate([rest["1/memory/residual"][0], rest["0/memory/residual"][0].ravel()])
    assert np.abs(kept).max() > 0.1
