"""Encoders of lists give the bits of single-tensor operations and TensorFlow's arithmetic."""

import numpy as np
import pytest
import tensorflow as tf
from sparse_list_cases import ListsTest, ks_of, list_key, sent_of, sized, streams

from grace_tf import ops
from grace_tf.ops import cast, selection
from grace_tf.ops.backend import native

pytestmark = [
    pytest.mark.rotated,
    pytest.mark.skipif(not native.available(), reason=native.why_not()),
]


def composed_top_k(accs, ks):
    values, indices = zip(*(ops.top_k(acc, k) for acc, k in zip(accs, ks)))
    return [tf.concat(values, 0), tf.concat(indices, 0)], sent_of(values, indices, accs)


def composed_threshold(threshold):
    def compose(accs, ks):
        values, indices, counts, sent = [], [], [], []
        for acc, m in zip(accs, ks):
            value, index = ops.top_k(acc, m)
            passes = tf.abs(value) > threshold
            count = tf.reduce_sum(tf.cast(passes, tf.int32))
            padding = [[0, m - int(count)]]
            values.append(tf.pad(value[passes], padding))
            indices.append(tf.pad(index[passes], padding))
            counts.append(count)
            sent.append(
                ops.scatter_sum(values[-1][None], indices[-1][None], count[None], acc.shape[0])
            )
        return [tf.concat(values, 0), tf.concat(indices, 0), tf.stack(counts)], sent

    return compose


def composed_random_k(accs, ks):
    indices = [
        ops.random_indices(acc.shape[0], k, key)
        for acc, k, key in zip(accs, ks, streams(list_key(len(ks))))
    ]
    values = [ops.gather(acc, i) for acc, i in zip(accs, indices)]
    return [tf.concat(values, 0)], sent_of(values, indices, accs)


def composed_cast(dtype):
    def compose(accs, ks):
        halves = [tf.cast(acc, dtype) for acc in accs]
        return [tf.concat(halves, 0)], [tf.cast(half, tf.float32) for half in halves]

    return compose


class EncodersTest(ListsTest):
    def test_top_k(self):
        self.encoded(selection.top_k_list, composed_top_k)

    def test_top_k_of_few_and_of_all(self):
        short = ("short", "shapes", "zeros", "nan")
        self.encoded(selection.top_k_list, composed_top_k, (0.0, 0.3, 1.0), short)

    def test_threshold(self):
        # Few, many and nearly all pass; a denormal counts as zero.
        for threshold in (1.5, 0.05, 0.0, 1e-40):
            self.encoded(
                lambda xs, rs, m, ks, t=threshold: selection.threshold_list(xs, rs, m, t, ks),
                composed_threshold(threshold),
                (0.2,),
                ("shapes", "large", "awkward", "zeros", "nan", "equal"),
            )

    def test_threshold_with_room_for_all(self):
        self.encoded(
            lambda xs, rs, m, ks: selection.threshold_list(xs, rs, m, 0.3, ks),
            composed_threshold(0.3),
            (1.0,),
            ("short", "large", "nan"),
        )

    def test_entries_that_do_not_count_take_nothing_from_the_first_element(self):
        x, zeros = tf.constant([5.0, 1.0, 1.0, 1.0]), tf.zeros([4])
        for implementation in ("native", "reference"):
            with ops.using(implementation):
                kept = selection.threshold_list([x], [zeros], 1.0, 2.0, [3])[3]
            self.assertAllEqual(kept[0], [0, 1, 1, 1])

    @pytest.mark.slow
    def test_random_k(self):
        self.encoded(
            lambda xs, rs, m, ks: selection.random_k_list(xs, rs, m, ks, list_key(len(ks))),
            composed_random_k,
            (0.01, 1.0),
            ("short", "shapes", "large", "awkward", "zeros", "nan"),
        )

    def test_casts(self):
        for dtype in (tf.float16, tf.bfloat16):
            self.encoded(
                lambda xs, rs, m, ks, dtype=dtype: cast.cast_list(xs, rs, m, dtype),
                composed_cast(dtype),
            )

    def test_lists_that_bypass_the_caches(self):
        xs = [tf.constant(x) for x in sized((2**21 + 5,), (3,))]
        rs = [0.5 * x for x in xs]
        ks, key = ks_of([np.empty(x.shape) for x in xs], 0.01), list_key(2)
        for fused, compose in [
            (lambda: selection.top_k_list(xs, rs, 1.0, ks), composed_top_k),
            (lambda: selection.random_k_list(xs, rs, 1.0, ks, key), composed_random_k),
            (lambda: cast.cast_list(xs, rs, 1.0, tf.float16), composed_cast(tf.float16)),
        ]:
            self.compare(fused, lambda c=compose: self.composition(xs, rs, 1.0, ks, c), "long")


if __name__ == "__main__":
    tf.test.main()
