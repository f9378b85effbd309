"""What is kept between steps, and that nothing is lost."""

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.cli.bench import step as bench_step
from grace_tf.core import registry, rounds
from grace_tf.core.memory import Memory
from grace_tf.line import exchange
from grace_tf.line.settings import settings
from grace_tf.memories.residual import Residual
from grace_tf.ops.backend import native
from grace_tf.testing import Workers, cases

SHAPE = (40, 30)


class ResidualTest(tf.test.TestCase):
    def test_it_adds_what_was_not_sent(self):
        memory = Residual()
        state = memory.init_state(tf.TensorSpec([3], tf.float32))
        self.assertAllEqual(state["residual"], [0, 0, 0])
        x, carry = memory.compensate(tf.constant([1.0, 2.0, 3.0]), state, None)
        self.assertAllEqual(x, [1, 2, 3])
        sent, total = tf.constant([0.0, 2.0, 4.0]), tf.ones([3])
        aggregate, state = memory.settle(carry, sent, total, state, None)
        self.assertAllEqual(aggregate, total)
        self.assertAllEqual(state["residual"], [1, 0, -1])
        self.assertAllEqual(memory.compensate(tf.ones([3]), state, None)[0], [2, 1, 0])

    def test_gradients_arrive_sooner_or_later(self):
        self.arrive("residual", 1)

    def test_gradients_arrive_through_a_low_pass_filter_too(self):
        self.arrive("lowpass", 0.1)
        self.arrive("lowpass:beta=0.75", 0.75)

    def arrive(self, memory, beta):
        workers = Workers(2, "topk:ratio=0.1", memory=memory)
        given, arrived = np.zeros(SHAPE), np.zeros(SHAPE)
        for step in range(50):
            grads = [cases.normal(SHAPE, 10 * step + w) for w in range(2)]
            given += sum(g.astype(np.float64) for g in grads)
            arrived += 2 * workers([[g] for g in grads])[0][0].numpy()
        residuals = workers.state.arrays()["0/memory/residual"].astype(np.float64)
        self.assertAllClose(given, arrived + residuals.sum(0) / beta, atol=1e-4, rtol=0)
        self.assertGreater(np.abs(residuals).max(), 0.1)


def squares_of(workers, data, steps, rate):
    """Gradient descent of logistic regression, each worker on its data: the last mean gradient."""
    weights = np.zeros(data[0][0].shape[1], np.float32)

    def gradient(x, y):
        rate_of_one = 1 / (1 + np.exp(-(x @ weights)))
        return (x.T @ (rate_of_one - y) / len(y) + 1e-2 * weights).astype(np.float32)

    for _ in range(steps):
        given = workers([[gradient(x, y)] for x, y in data])
        weights = weights - np.float32(rate) * given[0][0].numpy()
    return float(np.sum(np.mean([gradient(x, y) for x, y in data], 0) ** 2))


def unlike_data():
    """Three workers whose optima lie far from each other, each alone and together."""
    draw = np.random.default_rng(5)
    data = []
    for _ in range(3):
        x = draw.normal(size=(60, 40)) + draw.normal(size=40)
        data.append((x, (x @ draw.normal(size=40) + draw.normal(size=60) > 0) * 1.0))
    return data


class EstimatesTest(tf.test.TestCase):
    """EF21 and DIANA reach the optimum that compression alone stays away from."""

    def reached(self, method, memory):
        return squares_of(Workers(3, method, memory=memory), unlike_data(), 600, 0.3)

    def test_ef21_converges_with_a_contraction(self):
        self.assertLess(self.reached("topk:ratio=0.1", "ef21"), 1e-8)
        self.assertGreater(self.reached("topk:ratio=0.1", "none"), 1e-2)
        self.assertGreater(self.reached("topk:ratio=0.1", "residual"), 1e-3)

    def test_diana_converges_with_an_unbiased_compressor(self):
        self.assertLess(self.reached("qsgd:bits=3,block=32", "diana:alpha=0.3"), 1e-8)
        self.assertGreater(self.reached("qsgd:bits=3,block=32", "none"), 1e-5)


@pytest.mark.parametrize("memory", ["ef21", "diana"])
def test_the_server_is_the_mean_of_the_estimates_and_a_refused_step_changes_nothing(memory):
    workers = Workers(3, "none", memory=memory)
    for step in range(5):
        grads = [[cases.normal(SHAPE, 10 * step + w)] for w in range(3)]
        before = workers.state.arrays()
        grads[1][0][0, 0] = np.nan if step == 3 else 1
        given = [total.numpy() for (total,) in workers(grads)]
        after = workers.state.arrays()
        if step == 3:
            assert all(np.isnan(total).all() for total in given)
            assert all(np.array_equal(before[name], after[name]) for name in before)
    own, server = (after[f"0/memory/{leaf}"] for leaf in ("own", "server"))
    assert np.abs(own[0] - own[1]).max() > 0.1
    np.testing.assert_allclose(server[0], own.mean(0), atol=1e-6)
    np.testing.assert_array_equal(server, np.broadcast_to(server[:1], server.shape))


SURROUNDED = [
    ("topk:ratio=0.1", "ef21"),
    ("topk:ratio=0.1|values=fp16", "ef21"),
    ("threshold:threshold=0.5", "ef21"),
    ("adaq:ratio=0.1", "ef21"),
    ("efsignsgd", "ef21"),
    ("sketch:ratio=0.5,rows=2", "ef21"),
    ("fp16", "momentum"),
    ("qsgd", "diana:alpha=0.3"),
    ("qsgd:bits=2", "ecq"),
    ("adaq:ratio=0.16", "adacomp:bin=50"),
    ("threshold:threshold=0", "variance"),
    ("natural", "diana"),
    ("terngrad", "momentum"),
    ("randomk:ratio=0.1,scaled=true", "diana"),
    ("topk|values=qsgd", "momentum"),
    ("topk:ratio=0.1", "dgc:clip=1.0"),
]


def test_a_memory_that_changes_one_action_of_another_is_asked_for_it_in_lists_too():
    class Silent(type(registry.get_memory("ef21"))):
        def compensate(self, x, state, ctx):
            compensated, carry = super().compensate(x, state, ctx)
            return tf.zeros_like(compensated), carry

    for spec in ("topk:ratio=1.0", "none"):
        workers = Workers(1, spec, memory=Silent())
        ((total,),) = workers.step([[tf.ones([4])]])
        assert not total.numpy().any()


@pytest.mark.skipif(not native.available(), reason="the native operations are not there")
@pytest.mark.parametrize("spec, memory", SURROUNDED, ids=["+".join(each) for each in SURROUNDED])
def test_around_a_fused_form_a_memory_gives_the_bits_of_its_composition(spec, memory):
    shapes = [(33,), (5, 7), (), (513,)]
    zeros = [tf.zeros(shape) for shape in shapes]
    assert rounds.fused(grace_tf.get(spec), registry.get_memory(memory), zeros)

    def told(traced):
        workers = Workers(3, spec, memory=memory, summed=True)
        step = tf.function(workers.step, autograph=False) if traced else workers.step
        for number in range(3):
            scale = np.float32(1e-38 if number == 1 else 1)
            grads = [
                [tf.constant(scale * cases.normal(s, 100 * number + 10 * w)) for s in shapes]
                for w in range(3)
            ]
            yield from (total.numpy().tobytes() for mine in step(grads) for total in mine)
            arrays = workers.state.arrays()
            yield from (arrays[k].tobytes() for k in sorted(arrays) if arrays[k].dtype != object)

    for traced in (False, True):
        found = list(told(traced))
        kind = type(registry.get_memory(memory))
        with (
            mock.patch.object(exchange, "fused", lambda *_: None),
            mock.patch.object(kind, "compensate_list", Memory.compensate_list),
            mock.patch.object(kind, "settle_list", Memory.settle_list),
        ):
            assert found == list(told(traced))


@pytest.mark.skipif(not native.available(), reason="the native operations are not there")
@pytest.mark.parametrize(
    "spec, memory",
    [("topk", "ef21"), ("qsgd", "diana"), ("randomk:scaled=true", "diana"), ("efsignsgd", "ef21")],
)
def test_estimates_are_a_few_nodes_for_each_variable(spec, memory):
    def nodes(count):
        variables = [tf.Variable(tf.zeros([40, 30])) for _ in range(count)]
        aggregate = grace_tf.Aggregator(spec, variables, memory=memory)
        step = tf.function(lambda *grads: aggregate(grads, variables), autograph=False)
        return bench_step.count_nodes(step.get_concrete_function(*variables).graph)

    assert (nodes(30) - nodes(10)) / 20 <= 10


class NoMemoryTest(tf.test.TestCase):
    def test_it_keeps_nothing(self):
        memory = registry.get_memory("none")
        self.assertEqual(memory.init_state(tf.TensorSpec([3], tf.float32)), {})
        x = tf.ones([3])
        self.assertAllEqual(memory.compensate(x, {}, None)[0], x)
        self.assertEqual(memory.settle(None, None, x, {}, None), (x, {}))


@pytest.mark.parametrize("spec", ["signsgd", "qsgd", "topk|values=qsgd:rounding=stochastic"])
def test_a_residual_is_refused_where_it_could_grow_without_bound(spec):
    with pytest.raises(ValueError, match='is nonexpansive and .* is not; use memory="none"'):
        settings(spec, memory="residual")


def test_the_refusal_names_the_way_out():
    with pytest.raises(ValueError, match='use memory="none" or rounding="nearest"'):
        settings("qsgd", memory="residual")
    with pytest.raises(ValueError, match='or rounding="nearest"'):
        settings("topk|values=qsgd:rounding=stochastic", memory="residual")
    (route,) = settings("qsgd", memory="residual", rounding="nearest").routes
    assert route[2] == Residual()
    with pytest.raises(ValueError, match="needs a compressor that is nonexpansive"):
        grace_tf.Aggregator("signsgd", memory="residual")


def test_estimates_are_refused_for_compressors_that_they_cannot_follow():
    for spec, memory, words in (
        (
            "topk",
            "diana",
            'needs a compressor that is unbiased and topk is not; use memory="ef21".',
        ),
        ("qsgd:rounding=nearest", "diana", 'use memory="ef21" or rounding="stochastic"'),
        ("qsgd:rounding=nearest", "ecq", 'use memory="ef21" or rounding="stochastic"'),
        ("signsgd", "diana", 'use memory="none".'),
        ("qsgd", "ef21", 'nonexpansive and .* use memory="none" or rounding="nearest"'),
        ("qsgd", "lowpass", 'nonexpansive and .* use memory="none" or rounding="nearest"'),
    ):
        with pytest.raises(ValueError, match=words):
            settings(spec, memory=memory)


@pytest.mark.parametrize("wrong", ["lowpass:beta=0", "lowpass:beta=2", "diana:alpha=-1"])
def test_a_share_is_above_zero_and_at_most_one(wrong):
    with pytest.raises(ValueError, match=r"is a fraction in \(0, 1\], not"):
        registry.get_memory(wrong)
    with pytest.raises(ValueError, match="dtype is one of float32, bf16, int8, not 'fp8'"):
        registry.get_memory("residual:dtype=fp8")


@pytest.mark.parametrize(
    "memory", ["lowpass:beta=0.3", "ef21", "diana:alpha=0.5", "residual:dtype=bf16", "residual"]
)
def test_a_memory_with_hyperparameters_comes_back_from_its_configuration(memory):
    wanted = settings("none", memory=memory)
    assert wanted.config()["memory"] == memory
    assert settings(**wanted.config()) == wanted
    assert wanted.routes[0][2] == registry.get_memory(memory)


class RegistrationTest(tf.test.TestCase):
    def test_a_third_party_memory_is_found_by_name_and_by_config(self):
        @grace_tf.register("half_residual")
        class HalfResidual(Residual):
            """Forgets half of what was not sent."""

            def settle(self, carry, sent, total, state, ctx):
                return total, {"residual": (carry - sent) / 2}

        self.addCleanup(registry._MEMORIES.pop, "half_residual")
        wanted = settings("topk", memory=HalfResidual())
        self.assertEqual(wanted, settings(**wanted.config()))
        self.assertEqual(wanted.routes[0][2], registry.get_memory("half_residual"))
        with self.assertRaisesRegex(ValueError, "'residual' is taken"):
            grace_tf.register("residual")(type("Other", (grace_tf.Memory,), {}))

    def test_an_unregistered_memory_is_refused(self):
        class Mine(grace_tf.Memory):
            """Not listed."""

        with self.assertRaisesRegex(ValueError, "Mine is not registered"):
            settings("topk", memory=Mine())
