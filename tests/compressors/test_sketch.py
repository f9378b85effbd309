"""Quantile buckets, and MinMaxSketch."""

import numpy as np
import numpy_quantiles as by_hand
import pytest
import tensorflow as tf
from sums import conserves

import grace_tf
from grace_tf.testing import Workers, cases


def roundtrip(spec, x, **options):
    (got,) = Workers(1, spec, memory="none", **options)([[x]])
    return got[0].numpy()


class SketchTest(tf.test.TestCase):
    def test_it_is_the_formula(self):
        for shape, q in (((5003,), 64), ((67, 71), 5), ((3000,), 256), ((20_011,), 3)):
            x = cases.normal(shape) + np.float32(0.2)
            if q == 64:
                x[::3] = 0
            flat, ids = x.ravel().astype(np.float64), by_hand.ids_of(x, q)
            wanted = np.zeros(x.size)
            for i in np.unique(ids):
                wanted[ids == i] = flat[ids == i].mean()
            got = roundtrip(f"sketch:quantiles={q}", x)
            self.assertAllClose(got.ravel(), wanted, rtol=2e-7, atol=0)

    def test_buckets_hold_about_equally_many(self):
        # A bin of 1/128 of a value is not divided, so sizes differ by a bin's elements.
        x = cases.normal((100_003,))
        _, sizes = np.unique(roundtrip("sketch", x), return_counts=True)
        self.assertLen(sizes, 64)
        self.assertLess(np.abs(sizes / (x.size / 64) - 1).max(), 0.4)

    def test_known_vector(self):
        # Three of six buckets for the negatives, one for the zeros, two for the positives.
        x = np.repeat(np.float32([-4, -2, -1, -1, 0, 1, 3, 5, 7]), 20)
        got = roundtrip("sketch:quantiles=6", x)
        self.assertAllEqual(got[::20], [-4, -2, -1, -1, 0, 2, 2, 6, 6])

    def test_no_value_changes_its_sign(self):
        # One list of quantiles for both signs, as GRACE's, has a bucket around zero.
        for spec in ("sketch", "sketch:quantiles=3", "sketch:ratio=0.2", "sketch:ratio=0.2,rows=1"):
            x = np.concatenate([cases.normal((2000,)), np.float32([-1e-3] * 5 + [1e-3] * 3000)])
            got = roundtrip(spec, x)
            self.assertTrue(((got == 0) | (np.sign(got) == np.sign(x))).all(), spec)
            self.assertGreater((got < 0).sum(), 0)

    def test_bug_24_zeros_and_empty_buckets_are_no_nan(self):
        # The mean of an empty bucket is 0 / 0: with zeros or ties most buckets are empty.
        self.assertAllEqual(roundtrip("sketch", np.zeros(500, np.float32)), np.zeros(500))
        for x in (np.eye(1, 500, 7)[0], np.full(500, -2.5), np.repeat([1.0, -3.0], 250)):
            self.assertAllEqual(roundtrip("sketch", x.astype(np.float32)), x)

    def test_bug_8_workers_agree_whatever_their_quantiles_are(self):
        grads = [cases.normal((500,), w) * np.float32(10.0**w) for w in range(3)]
        apart = [roundtrip("sketch", g) for g in grads]
        for (mine,) in Workers(3, "sketch", memory="none")([[g] for g in grads]):
            self.assertAllClose(mine, np.mean(apart, 0), rtol=1e-6)

    def test_ids_take_their_bits(self):
        # GRACE sent a byte for each id, and two at 256 quantiles.
        spec = tf.TensorSpec([10**6], tf.float32)
        self.assertEqual(grace_tf.get("sketch").nbytes(spec), 750_256)  # GRACE: 1,000,256
        self.assertEqual(grace_tf.get("sketch:quantiles=256").nbytes(spec), 1_001_024)
        plain, sketch = (grace_tf.get(f"sketch:ratio=0.01,rows={r}").wire(spec) for r in (0, 2))
        self.assertEqual(plain["ids"].shape, [6 * 313])
        self.assertEqual(sketch["ids"].shape, [3 * 313])
        self.assertEqual(sketch["cells"].shape, [2 * 63 * 3])
        self.assertFalse(grace_tf.get("sketch").wants(tf.TensorSpec([60], tf.float32)))

    def test_a_dictionary_of_grace_is_taken_over(self):
        params = {"compressor": "sketch", "quantiles": 32, "memory": "residual"}
        self.assertEqual(grace_tf.from_params(params), params)
        # GRACE's sketch does not look at the ratio that its dictionaries often hold.
        self.assertEqual(grace_tf.from_params({**params, "compress_ratio": 0.3}), params)
        self.assertEqual(grace_tf.get("sketch").quantiles, 64)  # GRACE's default too

    def test_a_projection_keeps_sums_and_shrinks(self):
        x = cases.normal((6000,)) * np.float32(10) ** cases.normal((6000,), 1)
        for spec in ("sketch", "sketch:ratio=0.3", "sketch:ratio=0.3,rows=2"):
            got = roundtrip(spec, x).astype(np.float64)
            left = x - got
            # What is left is orthogonal to what is sent, and sums to nothing on each bucket.
            self.assertLess(abs(got @ left), 1e-5 * np.linalg.norm(x) ** 2)
            for value in np.unique(got[got != 0]):
                own = x[got == value].astype(np.float64)
                self.assertLess(abs(own.mean() - value), 1e-5 * abs(value))

    def test_what_is_selected_is_the_largest(self):
        x = cases.normal((3001,))
        for spec in ("sketch:ratio=0.1", "sketch:ratio=0.1,rows=2"):
            largest = np.sort(np.argsort(-np.abs(x), kind="stable")[:300])
            self.assertAllEqual(np.flatnonzero(roundtrip(spec, x)), largest)

    def test_more_cells_collide_less(self):
        x = cases.normal((6_000,))
        errors = [
            np.linalg.norm(roundtrip(f"sketch:ratio=0.999,{cells}", x) - x)
            for cells in (
                "rows=2,columns=0.1",
                "rows=2",
                "rows=2,columns=1",
                "rows=8,columns=1",
                "rows=0",
            )
        ]
        self.assertAllEqual(errors[:4], np.sort(errors[:4])[::-1])
        self.assertAllClose(errors[3], errors[4], rtol=0.1)

    def test_nothing_is_lost_in_fifty_steps(self):
        for spec in ("sketch", "sketch:ratio=0.1,rows=2"):
            conserves(self, spec)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("quantiles=2", "quantiles is from 3 to 256"),
        ("ratio=0", "ratio is a fraction"),
        ("rows=9", "rows is from 0 to 8"),
        ("rows=2", "rows need a ratio below 1"),
        ("columns=2.0", "columns is a fraction"),
        ("ratio=0.1,rows=2,quantiles=60", "groups divides quantiles"),
        ("ratio=0.1,rows=2,quantiles=96,groups=8", "groups divides quantiles"),
        ("ratio=0.1,rows=2,quantiles=64,groups=64", "groups divides quantiles"),
    ],
)
def test_what_it_refuses(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        grace_tf.get(f"sketch:{options}")
