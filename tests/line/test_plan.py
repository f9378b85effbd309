"""Variables to lanes, groups and buckets."""

import traceback
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from grace_tf.compressors.topk import TopK
from grace_tf.line import collective_keys
from grace_tf.line.plan import keyed, make_plan
from grace_tf.line.settings import DENSE, settings
from grace_tf.memories.residual import Residual
from grace_tf.testing import Workers, cases
from grace_tf.transports.base import PLAN_KEYS
from grace_tf.transports.rows import NAMES

SHAPES = ((40, 30), (30,), (64, 33), (5,), (257,))


def plan(shapes=SHAPES, compressor="topk:ratio=0.1", paths=None, dtypes=None, **keywords):
    paths = paths or [f"layer_{i}/kernel" for i in range(len(shapes))]
    dtypes = dtypes or [tf.float32] * len(shapes)
    specs = [tf.TensorSpec(s, d) for s, d in zip(shapes, dtypes)]
    return make_plan(settings(compressor, **keywords), paths, specs, range(len(shapes)))


def lanes(made):
    return {lane.position: lane for group in made.groups for lane in group.lanes}


def positions(made):
    return [
        [[lane.position for lane in group.lanes] for group in bucket] for bucket in made.buckets
    ]


def buckets_keys(made):
    """Those of three rounds of each bucket."""
    return [
        made.key(b, r, kind, dtype)
        for b in range(len(made.buckets))
        for r in range(3)
        for kind in ("sum", "max", "gather")
        for dtype in ("int32", "float32")
    ]


class RoutesTest(tf.test.TestCase):
    def test_small_and_integer_gradients_travel_dense(self):
        made = plan(
            ((32, 32), (1023,), (2000,), (0,)),
            dtypes=[tf.float32, tf.float32, tf.int32, tf.float32],
        )
        dense = {i: lane.dense for i, lane in lanes(made).items()}
        self.assertEqual(dense, {0: False, 1: True, 2: True, 3: True})
        self.assertFalse(lanes(plan(((1,), ()), min_elements=1))[1].dense)
        self.assertTrue(lanes(plan(((0,),), min_elements=0))[0].dense)

    def test_other_floats_are_compressed_as_float32_and_dense_ones_keep_their_dtype(self):
        made = plan(((2000,), (2000,), (10,)), dtypes=[tf.float16, tf.float64, tf.float64])
        specs = {i: lane.spec.dtype for i, lane in lanes(made).items()}
        self.assertEqual(specs, {0: tf.float32, 1: tf.float32, 2: tf.float64})
        self.assertEqual(positions(made), [[[2], [1, 0]]])

    def test_patterns_match_the_whole_path_and_the_first_one_wins(self):
        made = settings(
            {r"dense/.*": "topk", r".*kernel": "signsgd", r"exact": "fp16"}, exclude=[r".*/skip"]
        )
        names = {
            path: made.route(path)[0].name
            for path in (
                "dense/kernel",
                "conv/kernel:0",
                "conv/kernel_1",
                "dense/skip",
                "dense/skipped",
                "exact:0",
                "inexact",
            )
        }
        self.assertEqual(
            names,
            {
                "dense/kernel": "topk",
                "conv/kernel:0": "signsgd",
                "conv/kernel_1": "none",
                "dense/skip": "none",
                "dense/skipped": "topk",
                "exact:0": "fp16",
                "inexact": "none",
            },
        )
        self.assertEqual(made.route("dense/kernel")[1], Residual())
        self.assertEqual(made.route("dense/skip"), DENSE)

    def test_a_string_is_one_pattern_to_exclude(self):
        self.assertEqual(settings("topk", exclude="bias").exclude, ("bias",))
        self.assertTrue(settings("none").dense)
        self.assertFalse(settings({"a": "none", "b": TopK(0.1)}).dense)


@pytest.mark.parametrize(
    "spec",
    ["qsgd", "topk:ratio=0.1", "randomk:ratio=0.1", "signsgd", "powersgd:rank=1", "threshold"]
    + ["fp16"],
)
def test_bucket_bytes_never_change_a_result(spec):
    results = []
    for bucket_bytes in (1, 5000, 25 << 20):
        # Traced, since the graph's optimizer must not make a difference either.
        traced = tf.function(Workers(3, spec, bucket_bytes=bucket_bytes).step)
        for step in range(2):
            got = traced(
                [
                    [tf.constant(cases.normal(s, 100 * step + 10 * w)) for s in SHAPES]
                    for w in range(3)
                ]
            )
        results.append([t.numpy() for t in got[1]])
    for other in results[1:]:
        for a, b in zip(results[0], other):
            np.testing.assert_array_equal(a, b)


def test_autograph_leaves_a_step_of_workers_alone():
    """It would convert all that a step calls, which takes longer than the trace."""
    files = []

    def noting(*arguments):
        files.extend(frame.filename for frame in traceback.extract_stack())
        return make_plan(*arguments)

    with mock.patch("grace_tf.testing.workers.make_plan", noting):
        tf.function(Workers(2, "fp16").step)([[tf.ones([3])]] * 2)
    assert files and not [file for file in files if "__autograph_generated" in file]


class BucketsTest(tf.test.TestCase):
    def test_buckets_are_filled_in_backward_order(self):
        made = plan(((10,), (20,), (30,)), "fp16", min_elements=1, bucket_bytes=200)
        self.assertEqual(positions(made), [[[2, 1]], [[0]]])
        made = plan(((10,), (20,), (30,)), "fp16", min_elements=1, bucket_bytes=1)
        self.assertEqual(positions(made), [[[2]], [[1]], [[0]]])

    def test_without_bucket_bytes_a_bucket_ends_with_a_quarter_of_the_payloads(self):
        kernels = ((512, 1024),) * 6  # of 2 MiB
        for spec, found in (
            ("none", [[5, 4], [3, 2], [1, 0]]),  # 3 MiB and more
            ("qsgd", [[5, 4], [3, 2], [1, 0]]),  # 512 KiB and more, which are more than a quarter
            ("topk", [[5, 4, 3, 2, 1, 0]]),  # all payloads have less than 512 KiB
        ):
            self.assertEqual(positions(plan(kernels, spec)), [[each] for each in found])
        # Three have more than 25 MiB of gradient.
        made = plan(((3 << 10, 1 << 10),) * 4, "topk")
        self.assertEqual(positions(made), [[[3, 2]], [[1, 0]]])

    def test_groups_share_compressor_memory_and_dtype(self):
        routes = {"a.*": "topk", "b.*": "randomk", ".*": "topk:ratio=0.01"}
        made = plan(((9,), (9,), (9,), (9,)), routes, ["a1", "b1", "c", "a2"], min_elements=1)
        self.assertEqual(positions(made), [[[3, 2, 0], [1]]])  # 0.01 is the default ratio

    def test_the_model_may_be_one_tensor(self):
        made = plan(granularity="model", min_elements=100, bucket_bytes=1)
        self.assertEqual(positions(made), [[[4, 2, 0], [3, 1]]])
        group, dense = made.groups
        self.assertEqual((group.merged, dense.merged), (True, False))
        self.assertEqual(group.specs, (tf.TensorSpec([257 + 64 * 33 + 1200], tf.float32),))
        self.assertEqual(group.ordinals, (4,))

    def test_the_model_granularity_selects_over_all_variables(self):
        grads = [np.ones([50], np.float32), 10 * np.ones([50], np.float32)]
        (mine,) = Workers(1, "topk:ratio=0.5", granularity="model")([grads])
        self.assertAllEqual(mine[0], np.zeros(50))
        self.assertAllEqual(mine[1], grads[1])


class DigestTest(tf.test.TestCase):
    def test_equal_plans_have_equal_digests(self):
        self.assertEqual(plan().digest, plan().digest)
        self.assertEqual(plan(compressor=TopK(0.1)).digest, plan().digest)
        # Models with equal shapes differ in the names of their variables alone.
        other = plan(paths=list("abcde"))
        self.assertEqual(other.layout, plan().layout)
        self.assertNotEqual(other.digest, plan().digest)

    def test_different_plans_have_different_digests(self):
        others = [
            plan(compressor="topk:ratio=0.2"),
            plan(compressor="topk:ratio=0.1", memory="none"),
            plan(min_elements=1),
            plan(bucket_bytes=1),
            plan(seed=1),
            plan(check_every=7),
            plan(granularity="model"),
            plan(exclude="layer_0/.*"),
            plan(SHAPES[:4]),
            plan(((30, 40), *SHAPES[1:])),
            plan(dtypes=[tf.float64] * 5),
        ]
        self.assertLen({p.digest for p in [plan(), *others]}, 1 + len(others))

    def test_keys_are_distinct_and_beyond_the_reserved_ones(self):
        made = plan(bucket_bytes=1)
        self.assertLen(made.buckets, 5)
        found = buckets_keys(made)
        self.assertLen(set(found), len(found))
        self.assertTrue(all(PLAN_KEYS <= key < 2**31 for key in found))
        self.assertTrue(all(key in made.keys for key in found))
        self.assertEqual(
            plan(bucket_bytes=1).key(1, 0, "sum", "int32"), made.key(1, 0, "sum", "int32")
        )

    def test_keys_beyond_what_there_are_are_refused(self):
        made = plan()
        for round_, dtype in ((32, "float32"), (0, "float32_ref")):
            with self.assertRaisesRegex(ValueError, f"of round {round_} and dtype .* has no key"):
                made.key(0, round_, "sum", dtype)

    def test_the_keys_of_rows_come_behind_those_of_the_buckets(self):
        grads = [tf.TensorSpec([7, 3]), tf.TensorSpec([20])]
        for rows in ((0,), (0, 1)):
            made = make_plan(settings("none"), ["table", "kernel"], grads, [0, 1], rows)
            self.assertLen(made.buckets, 2 - len(rows))
            of_rows = [made.row_key(name) for name in NAMES]
            self.assertEqual(of_rows, list(made.keys)[-len(NAMES) :])
            self.assertLen({*of_rows, *buckets_keys(made)}, len(of_rows) + len(buckets_keys(made)))
        with self.assertRaisesRegex(ValueError, "is called counts, words, .*, not 'row'"):
            made.row_key("row")

    def test_no_key_comes_twice_whoever_is_collected_when(self):
        """As on two workers: one keeps its plans, the other's are collected at once."""
        runs = []
        for kept in ([], None):
            with mock.patch.object(collective_keys, "_next", collective_keys.FIRST):
                run = []
                for seed in (0, 0, 1, 0):
                    made = keyed(plan(seed=seed, bucket_bytes=1))
                    self.assertEqual(made.digest, plan(seed=seed, bucket_bytes=1).digest)
                    run.append(made.keys)
                    if kept is not None:
                        kept.append(made)
                    del made
                runs.append(run)
        self.assertEqual(*runs)
        every = [key for dealt in runs[0] for key in (dealt.start, dealt[-1])]
        self.assertEqual(every, sorted(every))
        self.assertLen(set(every), 8)
        self.assertTrue(all(len(dealt) == len(plan(bucket_bytes=1).keys) for dealt in runs[0]))

    def test_a_process_without_keys_left_says_so(self):
        with mock.patch.object(collective_keys, "_next", 2**31 - len(plan().keys)):
            self.assertEqual(keyed(plan()).keys.stop, 2**31)
            with self.assertRaisesRegex(
                RuntimeError, "no keys left for the collectives of another"
            ):
                keyed(plan())

    def test_keys_of_no_plan_lie_below_those_of_plans(self):
        theirs = {1, *range(1 << 18, (1 << 18) + (1 << 16) + 1)}  # a ProcessGroup's own
        self.assertLen({collective_keys.FINITE, collective_keys.EPOCH} - theirs, 2)
        self.assertTrue(
            0 < collective_keys.FINITE < PLAN_KEYS and 0 < collective_keys.EPOCH < PLAN_KEYS
        )


@pytest.mark.parametrize(
    ("keywords", "error", "sentence"),
    [
        (
            {"granularity": "layer"},
            ValueError,
            "granularity is one of auto, variable, model, not 'layer'",
        ),
        ({"exchange": "ring"}, ValueError, "exchange is one of auto, gather, two_hop, sum"),
        ({"exchange": "two_hop"}, ValueError, "not topk.* with the memory residual"),
        ({"exchange": "sum"}, ValueError, "such as fp16, and topk is none"),
        ({"min_elements": -1}, ValueError, "min_elements is at least 0"),
        ({"bucket_bytes": 0}, ValueError, "bucket_bytes is at least 1"),
        ({"seed": 2**32}, ValueError, "seed is from 0 to 4294967295"),
        ({"seed": 1.5}, TypeError, "seed is an integer"),
        ({"exclude": "("}, ValueError, r"The pattern '\(' is no regular expression"),
        ({"exclude": [3]}, TypeError, "A pattern is a regular expression in a string, not 3"),
        ({"memory": "nosuch"}, ValueError, "Unknown memory 'nosuch'"),
        ({"compressor": {}}, ValueError, "The mapping of patterns to compressors is empty"),
        (
            {"compressor": {".*": "topk"}, "ratio": 0.1},
            TypeError,
            "Hyperparameters beside a mapping are ambig",
        ),
        ({"ratio": 2}, ValueError, "ratio is a fraction"),
    ],
)
def test_wrong_keywords_are_told_in_a_sentence(keywords, error, sentence):
    with pytest.raises(error, match=sentence):
        settings(**{"compressor": "topk", **keywords})


def test_a_gradient_without_a_static_shape_is_refused():
    with pytest.raises(
        ValueError, match="The variable w has no static shape .*: make the variable"
    ):
        make_plan(settings("topk"), ["w"], [tf.TensorSpec([None, 3], tf.float32)], [0])
