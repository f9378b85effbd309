"""Codes of four bits, and a filtered residual of one byte an element."""

import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.core import registry
from grace_tf.core.specs import spec_of
from grace_tf.testing import Workers, cases


class LoCoTest(tf.test.TestCase):
    def test_a_known_vector(self):
        x = np.array([7, -3.4, 0.6, 0.4, -7, 0, 2.5, -1], np.float32)
        got = Workers(1, "loco")([[x]])[0][0]
        self.assertAllEqual(got, [7, -3, 1, 0, -7, 0, 2, -1])  # half to even

    def test_the_residual_is_a_fifth_of_what_rounding_left(self):
        x = cases.normal((2048,))
        workers = Workers(1, "loco")
        sent = workers([[x]])[0][0].numpy()
        # Before the second step e = 0.2·(x − sent), and so that step sends C(x + e).
        again = workers([[x]])[0][0].numpy()
        compensated = x + 0.2 * (x - sent)
        unit = np.abs(compensated.reshape(-1, 512)).max(1).repeat(512) / 7
        wanted = unit * np.round(compensated / unit)
        # e is rounded to 1/127 of its block's largest, so few elements are a level off.
        self.assertLess(np.mean(np.abs(again - wanted) > 1e-3), 0.02)

    def test_what_rounding_left_arrives_later(self):
        x, total = cases.normal((2048,)), 0
        workers = Workers(1, "loco")
        first = workers([[x]])[0][0].numpy()
        for _ in range(40):
            total = total + workers([[x]])[0][0].numpy()
        left = np.linalg.norm(total / 40 - x) / np.linalg.norm(first - x)
        self.assertLess(left, 0.3)

    def test_the_residual_starts_anew_at_a_reset(self):
        workers, without = (
            Workers(1, "loco:reset=3"),
            Workers(1, "qsgd:rounding=nearest", memory="none"),
        )
        alike = []
        for step in range(5):
            x = cases.normal((2048,), step)
            alike.append(np.array_equal(workers([[x]])[0][0], without([[x]])[0][0]))
        self.assertEqual(alike, [True, False, False, True, False])

    def test_the_bytes_are_those_of_qsgd(self):
        spec = tf.TensorSpec([10**6], tf.float32)
        self.assertEqual(grace_tf.get("loco").nbytes(spec), grace_tf.get("qsgd").nbytes(spec))

    def test_the_name_resolves_to_qsgd_and_the_memory(self):
        compressor, memory = registry.resolve("loco:bits=8")
        self.assertEqual(str(compressor), "qsgd:bits=8,rounding=nearest")
        self.assertEqual(spec_of(memory), "lowpass:beta=0.2,dtype=int8,reset=1024")
        for wrong in ("bits=1", "beta=0", "reset=0"):
            with self.assertRaises(ValueError):
                grace_tf.get(f"loco:{wrong}")
