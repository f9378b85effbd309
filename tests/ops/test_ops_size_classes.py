"""Elements in classes: native, reference and NumPy are the same bits, whatever they are given."""

import functools
import itertools

import numpy as np
import numpy_size_classes as own
import pytest
import tensorflow as tf
from ops_cases import NOT_FINITE, SameOnEveryISA, gradient, of_all_sizes

from grace_tf.ops import size_classes
from grace_tf.ops.backend import native
from grace_tf.ops.size_classes import Classes, Room, lengths

pytestmark = pytest.mark.rotated

LENGTHS = [1, 2, 5, 31, 32, 33, 257, 2048, 2049, 5003]
SHAPES = [[n] for n in LENGTHS]
# (bound, words and outliers of an element, step)
FORMS = [
    (24, (0.16, 0.01), 3),
    (24, (1.0, 0.0), 0),
    (20, (0.03, 0.1), 2**40 + 77),
    (3, (0.4, 0.01), 1),
    (100, (0.6, 0.02), 12),
]


def rooms(fractions, sizes=LENGTHS):
    return [Room(max(1, int(fractions[0] * n)), int(fractions[1] * n)) for n in sizes]


def kinds():
    """Lists of tensors by name; some are not finite."""
    return {
        "gradients": [gradient(n) for n in LENGTHS],
        "of all sizes": [of_all_sizes(n, -24) for n in LENGTHS],
        "huge": [gradient(n) * np.float32(5e37) for n in LENGTHS],
        "tiny": [gradient(n) * np.float32(2e-33) for n in LENGTHS],
        "equal": [np.full(n, -0.3, np.float32) for n in LENGTHS],
        "zero": [np.zeros(n, np.float32) for n in LENGTHS],
        "not finite": [np.resize(NOT_FINITE, n) for n in LENGTHS],
    }


class ClassesTest(SameOnEveryISA):
    def test_encoders_are_the_same_everywhere(self):
        residuals = [0.5 * x[::-1] for x in kinds()["gradients"]]
        for (what, xs), (i, form) in itertools.product(kinds().items(), enumerate(FORMS)):
            bound, fractions, step = form
            left, multiplier = (residuals, 3.0) if i % 2 else (None, 1.0)
            *_, finite = self.same_everywhere(
                functools.partial(
                    size_classes.encode_classes, xs, left, multiplier, bound, rooms(fractions), step
                ),
                f"{what}, bound {bound}",
            )
            with np.errstate(all="ignore"):
                accs = [x * np.float32(multiplier) for x in xs]
                accs = [a + r for a, r in zip(accs, left)] if left else accs
            self.assertEqual(bool(finite), all(np.isfinite(acc).all() for acc in accs))

    def test_they_are_those_of_numpy(self):
        for what in ("gradients", "of all sizes", "huge", "tiny", "equal", "zero"):
            for bound, fractions, step in FORMS:
                for x, n, room in zip(kinds()[what], LENGTHS, rooms(fractions)):
                    parts, _, _ = size_classes.encode_classes([x], None, 1.0, bound, [room], step)
                    wanted = own.payload(x, bound, room, step)
                    for part, want, name in zip(parts, wanted, Classes._fields):
                        self.assert_same_bits(part, want, f"{name} of {n} {what}, bound {bound}")
                    rows = Classes(*[tf.stack([part, part]) for part in parts])
                    (total,), _ = size_classes.decode_classes(rows, [[n]], 0.5, [room])
                    value = own.sent(x, bound, room, step)[0].astype(np.float32)
                    with np.errstate(over="ignore"):
                        twice = np.float32(0) + value + value
                    self.assert_same_bits(total, np.float32(0.5) * twice, f"{n} {what}")

    def test_decoders_take_any_bits_and_are_the_same_everywhere(self):
        draw = np.random.default_rng(1)
        for i, (_, fractions, _) in enumerate(FORMS):
            room = rooms(fractions)
            sizes = [sum(s) for s in zip(*[lengths(n, r) for n, r in zip(LENGTHS, room)])]
            for workers in (1, 3):
                rows = [
                    draw.integers(-(2**31), 2**31, [workers, s]).astype(np.int32) for s in sizes
                ]
                rows[2] = rows[2] % (300 if i % 2 else 10_000) - 20
                self.same_everywhere(
                    functools.partial(
                        size_classes.decode_classes, Classes(*rows), SHAPES, 0.3, room
                    ),
                    f"{workers} workers, {fractions} words and outliers",
                )

    def test_large_lists_are_cut_anywhere(self):
        sizes = (70_001, 3, 2_100_000, 131_073)
        xs = [np.resize(of_all_sizes(65_537, -24), n) for n in sizes]

        def both():
            room = rooms((0.1, 0.01), sizes)
            parts, kept, _ = size_classes.encode_classes(xs, xs, 1.0, 24, room, 5)
            rows = Classes(*[part[None] for part in parts])
            return (
                parts,
                kept,
                size_classes.decode_classes(rows, [[n] for n in sizes], 1.0, room),
            )

        self.same_on_threads(both, (1, 3))

    def test_what_does_not_fit_is_refused(self):
        x, room = tf.ones([40]), Room(4, 1)
        parts, _, _ = size_classes.encode_classes([x], None, 1.0, 10, [room], 0)
        rows = Classes(*[part[None] for part in parts])
        for call in (
            lambda: size_classes.encode_classes([x], None, 1.0, 0, [room], 0),
            lambda: size_classes.encode_classes([x], None, 1.0, 101, [room], 0),
            lambda: size_classes.encode_classes([x], None, 1.0, 10, [room, room], 0),
            lambda: size_classes.encode_classes([x], None, 1.0, 10, [Room(0, 1)], 0),
            lambda: size_classes.encode_classes([x], [x[1:]], 1.0, 10, [room], 0),
            lambda: size_classes.decode_classes(rows, [[65]], 1.0, [room]),
            lambda: size_classes.decode_classes(rows, [[40]], 1.0, [Room(5, 1)]),
            lambda: size_classes.decode_classes(
                rows._replace(counts=tf.zeros([2, 4], tf.int32)), [[40]], 1.0, [room]
            ),
        ):
            with self.assertRaises(ValueError):
                call()

    @pytest.mark.skipif(not native.available(), reason=native.why_not())
    def test_kernels_refuse_what_python_would_not_pass_on(self):
        module, none = native._ops(), tf.zeros([1, 2], tf.int32)
        form = dict(bound=10, rooms=[4], outliers=[1])
        encode = dict(xs=[tf.ones([32])], residuals=[], step=tf.constant(0, tf.int64))
        encode.update(multiplier=1.0)
        decode = dict(tags=none, numbers=none, counts=none, rooms=[4])
        for call in (
            lambda: module.grace_encode_classes_list(**encode, **form | {"bound": 0}),
            lambda: module.grace_encode_classes_list(**encode, **form | {"outliers": []}),
            lambda: module.grace_decode_classes_list(
                N=1, ranks=[1], dims=[32], factor=1.0, **decode
            ),
        ):
            with self.assertRaises(tf.errors.InvalidArgumentError):
                call()


if __name__ == "__main__":
    tf.test.main()
