"""−M, 0 or M for each element."""

import numpy as np
import pytest
import tensorflow as tf
from sums import conserves

import grace_tf
from grace_tf.cli.bench import step as bench_step
from grace_tf.core.context import Context
from grace_tf.testing import Workers, cases


def ternary(x, s, block=None):
    """M·round(x / M) of each block, M being s times its largest magnitude."""
    flat, out = x.reshape(-1), []
    for first in range(0, x.size, block or x.size):
        own = flat[first : first + (block or x.size)]
        m = np.float32(s) * np.abs(own).max()
        out.append(m * np.round(own / m))
    return np.concatenate(out).reshape(x.shape)


def sent_once(x, **parameters):
    """What one worker sends, and what it keeps."""
    workers = Workers(1, grace_tf.get("threelc", **parameters))
    ((got,),) = workers([[x]])
    return got.numpy(), workers.state.arrays()["0/memory/residual"][0]


class ThreeLCTest(tf.test.TestCase):
    def test_it_is_the_formula_where_nothing_overflows(self):
        for shape in ((700,), (60, 43)):
            for s, block, coding in (
                (1.0, None, "sparse"),
                (1.5, None, "sparse"),
                (1.0, None, "quartic"),
                (1.5, 64, "quartic"),
            ):
                x = cases.normal(shape)
                got, kept = sent_once(x, s=s, block=block, coding=coding)
                self.assertAllClose(got, ternary(x, s, block), rtol=1e-6)
                self.assertAllEqual(kept, x - got)

    def test_blocks_are_sparse_too(self):
        # Few elements are large in any block, so all of these fit.
        x = 0.1 * cases.normal((64 * 20 + 7,))
        x[::16] = 5 * np.sign(x[::16])
        got, _ = sent_once(x, s=1.0, block=64)
        self.assertAllClose(got, ternary(x, 1.0, 64), rtol=1e-6)

    def test_what_overflows_stays_in_the_residual(self):
        # Of a constant gradient all elements pass, and as many are sent as fit.
        for s, capacity in ((1.0, 0.15), (1.5, 0.08), (1.75, 0.03)):
            x = np.full(1000, -2.0, np.float32)
            got, kept = sent_once(x, s=s)
            self.assertEqual(np.count_nonzero(got), int(capacity * 1000))
            self.assertAllClose(np.unique(got), [-2 * s, 0])
            self.assertAllEqual(kept, x - got)

    def test_one_large_element_silences_its_block_alone(self):
        x = np.where(np.arange(320) == 3, 1000.0, cases.normal((320,))).astype(np.float32)
        for coding in ("sparse", "quartic"):
            self.assertEqual(np.count_nonzero(sent_once(x, coding=coding)[0]), 1)
            got, _ = sent_once(x, coding=coding, block=32)
            self.assertEqual(np.count_nonzero(got[:32]), 1)
            self.assertGreater(np.count_nonzero(got[32:]), 20)

    def test_five_elements_in_a_byte(self):
        x = np.float32([1, 0, -1, 0.4, 0.6] + [0] * 5 + [-1] * 5 + [1] * 5 + [0, 1])
        context = Context((tf.TensorSpec([22], tf.float32),), (0,), 0, 0, 1, 0)
        payload = grace_tf.get("threelc:coding=quartic").compress(tf.constant(x), context)
        trits = payload["trits"].numpy().view(np.uint8)
        # 81a + 27b + 9c + 3d + e of what is one above −1, 0 or 1; 121 is five zeros.
        first = 81 * 2 + 27 * 1 + 9 * 0 + 3 * 1 + 2
        self.assertAllEqual(trits, [first, 121, 0, 242, 121 + 27, 121, 121, 121])

    def test_no_error_exceeds_its_element(self):
        x = cases.adversarial((67, 71))["many scales"]
        for s in (1.0, 1.5, 1.75, 1.9):
            for block in (None, 32):
                got, kept = sent_once(x, s=s, block=block)
                self.assertTrue((np.abs(kept) <= np.abs(x) * (1 + 1e-6)).all())

    def test_workers_add_up(self):
        for spec in ("threelc", "threelc:block=32", "threelc:coding=quartic"):
            grads = [[cases.normal((60, 43), w)] for w in range(3)]
            alone = [Workers(1, spec)([mine])[0][0].numpy() for mine in grads]
            for (got,) in Workers(3, spec)(grads):
                self.assertAllClose(got, np.mean(alone, 0), rtol=1e-6, atol=1e-7)

    def test_conservation(self):
        for spec in ("threelc:s=1.5,block=32", "threelc:coding=quartic"):
            conserves(self, spec, steps=10)

    def test_the_bytes_on_the_wire(self):
        spec = tf.TensorSpec([10**6], tf.float32)
        for name, bits in (("threelc", 0.850), ("threelc:s=1.5", 0.525), ("threelc:s=1.75", 0.241)):
            self.assertAllClose(8 * grace_tf.get(name).nbytes(spec) / 10**6, bits, atol=0.002)
        self.assertEqual(grace_tf.get("threelc:coding=quartic").nbytes(spec), 200_000 + 4)
        self.assertEqual(grace_tf.get("threelc:coding=quartic,block=512").nbytes(spec), 207_816)

    def test_what_does_not_make_sense_is_refused(self):
        for wrong in ("s=0.9", "s=2", "block=33", "coding=binary"):
            with self.assertRaises(ValueError):
                grace_tf.get(f"threelc:{wrong}")


@pytest.mark.parametrize("spec", ["threelc", "threelc:block=64", "threelc:coding=quartic"])
def test_a_step_has_at_most_eight_nodes_for_each_variable(spec):
    def nodes(count):
        grads = [tf.zeros((40 + i, 50)) for i in range(count)]
        return count * bench_step.traced(spec, grads).nodes

    assert (nodes(30) - nodes(10)) / 20 <= 8
