"""What is kept between steps, and that nothing is lost."""

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.core import registry
from grace_tf.memories.residual import Residual
from grace_tf.settings import settings
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
        workers = Workers(2, "topk:ratio=0.1", memory="residual")
        given, arrived = np.zeros(SHAPE), np.zeros(SHAPE)
        for step in range(8):
            grads = [cases.normal(SHAPE, 10 * step + w) for w in range(2)]
            given += sum(g.astype(np.float64) for g in grads)
            arrived += 2 * workers([[g] for g in grads])[0][0].numpy()
        residuals = workers.state.arrays()["0/memory/residual"].astype(np.float64)
        self.assertAllClose(given, arrived + residuals.sum(0), atol=1e-5, rtol=0)
        self.assertGreater(np.abs(residuals).max(), 0.1)


class NoMemoryTest(tf.test.TestCase):
    def test_it_keeps_nothing(self):
        memory = registry.get_memory("none")
        self.assertEqual(memory.init_state(tf.TensorSpec([3], tf.float32)), {})
        x = tf.ones([3])
        self.assertAllEqual(memory.compensate(x, {}, None)[0], x)
        self.assertEqual(memory.settle(None, None, x, {}, None), (x, {}))


@pytest.mark.parametrize("spec", ["signsgd", "qsgd", "topk|values=qsgd"])
def test_a_residual_is_refused_where_it_could_grow_without_bound(spec):
    with pytest.raises(ValueError, match='is nonexpansive and .* is not; use memory="none"'):
        settings(spec, memory="residual")


def test_the_refusal_names_the_way_out():
    with pytest.raises(ValueError, match='use memory="none" or rounding="nearest"'):
        settings("qsgd", memory="residual")
    with pytest.raises(ValueError, match='or rounding="nearest"'):
        settings("topk|values=qsgd", memory="residual")
    (route,) = settings("qsgd", memory="residual", rounding="nearest").routes
    assert route[2] == Residual()
    with pytest.raises(ValueError, match="needs a compressor that is nonexpansive"):
        grace_tf.Aggregator("signsgd", memory="residual")


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
