"""MinMaxSketch: what is looked up is never more, and is the least that met; payloads by hand."""

import numpy as np
import pytest
import tensorflow as tf
from numpy_quantiles import ids_of, mean_of
from ops_cases import KEY, SameBits, gradient

import grace_tf
from grace_tf import ops
from grace_tf.cli.bench import step
from grace_tf.ops import min_max_sketch
from grace_tf.ops.backend import native
from grace_tf.ops.reference import quantiles as reference

pytestmark = pytest.mark.rotated

TABLES = min_max_sketch.Tables(
    rows=2, columns=(64, 32, 96), bits=3, ks=(100, 7, 33), variables=(4, 0, 9)
)


def indices_of(lengths, ks):
    draw = np.random.default_rng(0)
    each = [np.sort(draw.choice(n, k, replace=False)) for n, k in zip(lengths, ks)]
    return np.concatenate(each).astype(np.int32)


def cells_of(index, variable, columns, words, rows):
    """The cell of an index in each row, in whole numbers."""
    found = []
    for r in range(rows):
        times, plus = (
            int(words[i * rows + r]) << 32 | int(words[(i + 1) * rows + r]) for i in (0, 2)
        )
        upper = ((times * ((variable << 31) + int(index)) + plus) % 2**64) >> 32
        found.append(upper * columns >> 32)
    return found


class MinMaxTest(SameBits):
    def test_it_is_the_definition(self):
        indices = indices_of((5000, 50, 2**31 - 1 >> 8), TABLES.ks)
        low = np.random.default_rng(1).integers(0, 8, sum(TABLES.ks)).astype(np.int32)
        key = KEY._replace(variable=0)
        found = min_max_sketch.cells_of(tf.constant(indices[None]), key, TABLES)
        words = min_max_sketch.insert(tf.constant(low), found, TABLES)
        self.assertEqual(words.shape, [TABLES.words])
        got = min_max_sketch.query(words[None], found, TABLES)[0].numpy()
        random = ops.random_words(4 * TABLES.rows, key).numpy().view(np.uint32)
        at, wanted = 0, []
        for k, columns, variable in zip(TABLES.ks, TABLES.columns, TABLES.variables):
            cells = np.full([TABLES.rows, columns], 7)
            places = [cells_of(i, variable, columns, random, 2) for i in indices[at : at + k]]
            for value, place in zip(low[at : at + k], places):
                for r, column in enumerate(place):
                    cells[r, column] = min(cells[r, column], value)
            wanted += [max(cells[r, column] for r, column in enumerate(p)) for p in places]
            at += k
        self.assertAllEqual(got, wanted)
        self.assertTrue((got <= low).all())
        self.assertGreater((got == low).sum(), 0)

    def test_a_list_is_its_tensors(self):
        lengths, xs = (5000, 40, 900), [gradient(n) for n in (5000, 40, 900)]
        key = KEY._replace(variable=0)
        for sketched in (None, (2, 0.2, 8), (1, 1.0, 2)):

            def of(which, sketched=sketched):
                sizes = [lengths[i] for i in which]
                entries = min_max_sketch.entries_of(sizes, 0.1, 64, which, sketched)
                chosen = [ops.top_k(xs[i], k) for i, k in zip(which, entries.ks)]
                values, indices = (tf.concat(part, 0) for part in zip(*chosen))
                payload, sent = min_max_sketch.encode(
                    values, indices, key, entries, needs_sent=True
                )
                rows = {name: part[None] for name, part in payload.items()}
                self.assert_same_bits(sent, min_max_sketch.decode(rows, key, entries)[0])
                return payload, sent

            whole, values = of((0, 1, 2))
            parts = [of((i,)) for i in range(3)]
            for name, part in whole.items():
                self.assert_same_bits(part, np.concatenate([p[name] for p, _ in parts]), name)
            self.assert_same_bits(values, np.concatenate([v for _, v in parts]))

    def test_native_and_reference_are_the_same(self):
        # Without the native operations the reference would be compared with itself.
        if not native.available():
            self.skipTest(native.why_not())
        for sketched in (None, (2, 0.2, 8)):
            entries = min_max_sketch.entries_of((3000, 70), 0.1, 64, (0, 1), sketched)
            indices = tf.constant(indices_of((3000, 70), entries.ks))
            values = tf.constant(gradient(sum(entries.ks)))
            told = []
            for name in ("reference", "native"):
                with ops.using(name):
                    payload, sent = min_max_sketch.encode(values, indices, KEY, entries, True)
                    rows = {part: tf.stack([words, words]) for part, words in payload.items()}
                    got = min_max_sketch.decode(rows, KEY, entries)
                    told.append([*payload.values(), sent, got])
            for a, b in zip(*told, strict=True):
                self.assert_same_bits(a, b)

    def test_graphs_are_small_and_do_not_grow_with_the_number_of_workers(self):
        for sketched in (None, (2, 0.2, 8)):
            entries = min_max_sketch.entries_of((3000, 70, 500), 0.1, 64, (0, 1, 2), sketched)

            def nodes(size, entries=entries):
                rows = {
                    name: tf.TensorSpec([size, n], tf.int32) for name, n in entries.words.items()
                }
                rows["means"] = tf.TensorSpec([size, 3 * 64], tf.float32)
                decode = tf.function(lambda rows: min_max_sketch.decode(rows, KEY, entries))
                return step.count_nodes(decode.get_concrete_function(rows).graph)

            with ops.using("reference"):
                self.assertEqual(nodes(8), nodes(2))
            if native.available():
                self.assertEqual(nodes(8), nodes(2))
                self.assertLess(nodes(2), 160)

    def test_tables_of_too_many_cells_are_refused(self):
        n = 2**31 - 1
        with self.assertRaisesRegex(ValueError, "would have 6442450944 cells, and has fewer than"):
            min_max_sketch.entries_of((n,), 1.0, 64, (0,), (3, 1.0, 8))
        sketch = grace_tf.get("sketch:ratio=0.9,rows=8,columns=1.0")
        with self.assertRaisesRegex(ValueError, "take fewer rows or columns, or a lower ratio"):
            sketch.wants(tf.TensorSpec([n], tf.float32))

    def test_means_truncate_each_element(self):
        small = np.full(1000, 1.9 * 2.0**-31)  # beside 1 each is truncated to 0, their sum is not
        more = np.concatenate([[3e38, 2.0**-9, 2.0**-140, 1.0], small])
        x = np.concatenate([gradient(3000), more]).astype(np.float32)
        ids = np.random.default_rng(2).integers(0, 20, x.size) + 20 * (x < 0)
        ids[3000:3003], ids[3003:] = (41, 41, 42), 43
        got = reference.means_of(tf.constant(x), tf.constant(ids), 45).numpy()
        wanted = np.zeros(45, np.float32)
        for i in np.unique(ids):
            wanted[i] = mean_of(x[ids == i], by_bins=False)
        self.assert_same_bits(got, wanted)
        self.assertNotEqual(mean_of(x[ids == 43]), wanted[43])

    def test_plain_ids_are_the_means_of_their_buckets(self):
        entries = min_max_sketch.entries_of((999, 50), 1.0, 5, (0, 1), None)
        xs = [gradient(n) for n in (999, 50)]
        indices = tf.concat([tf.range(999), tf.range(50)], 0)
        payload, _ = min_max_sketch.encode(tf.concat(xs, 0), indices, None, entries)
        # The second worker has the buckets of the first in reverse.
        means = tf.reverse(tf.reshape(payload["means"], [2, 5]), [1])
        other = {**payload, "means": tf.reshape(means, [-1])}
        rows = {name: tf.stack([payload[name], other[name]]) for name in payload}
        got = min_max_sketch.decode(rows, None, entries).numpy()
        for levels, row in zip((payload["means"], other["means"]), got):
            levels = levels.numpy().reshape(2, 5)
            wanted = [own[ids_of(x, 5)] for own, x in zip(levels, xs)]
            self.assert_same_bits(row, np.concatenate(wanted))


if __name__ == "__main__":
    tf.test.main()
