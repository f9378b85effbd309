"""Sparse gradients in a process group; workers have unequal row counts.  Prints a line of JSON."""

import itertools
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

import models  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from this_keras import keras  # noqa: E402

import grace_tf  # noqa: E402
from grace_tf.keras import aggregator_of  # noqa: E402
from grace_tf.transports.base import PLAN_KEYS  # noqa: E402
from grace_tf.transports.rows import SIZES  # noqa: E402

SENTENCES = (6, 4, 1)  # of a batch, by worker
MIXED = {"compressor": "topk", "ratio": 0.5, "exclude": ".*table.*", "min_elements": 1}


def data(worker):
    """(x, y) of 12 batches of this worker."""
    x, y = models.tokens(rows=SENTENCES[worker], seed=worker)
    return x[:, 0], y[:, 0]


def fitted(base, steps_per_execution=1, **keywords):
    made = models.embedding()
    how = {"jit_compile": False} if models.KERAS_3 else {}
    made.compile(
        grace_tf.wrap(base, **keywords), "mse", steps_per_execution=steps_per_execution, **how
    )
    batches = tf.data.Dataset.from_tensor_slices(data(group.rank))
    made.fit(batches, epochs=1, shuffle=False, verbose=0)
    aggregator = aggregator_of(made.optimizer)
    handed = [[h.kind, h.dtype, h.nbytes] for h in aggregator.handed]
    return {
        "sha": models.sha(made),
        "residuals": sum(float(np.abs(v.numpy()).sum()) for v in aggregator.state.variables[1:]),
        "step": aggregator.state.step,
        "handed": handed,
    }


def eager_steps():
    """An Aggregator outside functions; worker 0 has no row at first."""
    table = tf.Variable(tf.zeros([5, 3]))
    aggregate = grace_tf.Aggregator("none")
    found = []
    for rows in (2 * group.rank, 1):
        values = tf.fill([rows, 3], 2.0 + group.rank)
        grad = tf.IndexedSlices(values, tf.fill([rows], group.rank), tf.constant([5, 3]))
        (total,) = aggregate([grad], [table])
        found.append([total.indices.numpy().tolist(), total.values.numpy()[:, 0].tolist()])
    return found


def nan_in_a_row_of_worker_1():
    """What a step leaves behind whose only bad value is in a lane of rows."""
    table, kernel = tf.Variable(tf.ones([5, 3]), name="table"), tf.Variable(tf.ones([8]))
    aggregate = grace_tf.Aggregator(**MIXED)

    @tf.function
    def step(factor):
        rows = tf.IndexedSlices(tf.ones([2, 3]) * factor, tf.constant([1, 1]), tf.constant([5, 3]))
        sparse, dense = aggregate([rows, tf.range(8.0)], [table, kernel])
        return sparse.values, dense

    step(tf.constant(1.0))
    before = aggregate.state.arrays()
    gradients = step(tf.constant(np.nan if group.rank == 1 else 1.0))
    after = aggregate.state.arrays()
    step(tf.constant(1.0))
    return {
        "residuals": sum("residual" in name for name in before),
        "untouched": all(np.array_equal(before[k], after[k]) for k in before),
        "nan": [bool(np.isnan(g.numpy()).all()) for g in gradients],
        "step": aggregate.state.step,
    }


LANES = [  # values' dtype and shape, indices' dtype
    ("float32", (1000, 3), "int32"),
    ("float16", (1000, 5), "int64"),
    ("bfloat16", (1000, 2, 3), "int32"),
    ("float64", (1000,), "int32"),
    ("float32", (1000, 0), "int64"),
]


def slices_of(worker, counts):
    """Lanes with these numbers of rows, whose values name worker and place; no row comes twice."""
    made = []
    for (dtype, shape, index), count in zip(LANES, counts):
        full = (count, *shape[1:])
        values = tf.reshape(tf.range(np.prod(full)) % 1000 + 1000 * worker, full)
        indices = tf.range(count, dtype=index) * 2 + worker
        made.append(tf.IndexedSlices(tf.cast(values, dtype), indices))
    return made


def rows_of_every_dtype():
    """Whether everyone's rows come in worker order, eagerly and traced; words handed over."""
    keys = itertools.count(PLAN_KEYS)
    names: dict[str, int] = {}

    def key(name):
        return names.setdefault(name, next(keys))

    def moved(*tensors):
        shapes = [tf.constant(shape) for _, shape, _ in LANES]
        mine = [tf.IndexedSlices(*x) for x in zip(tensors[::2], tensors[1::2], shapes)]
        return group.rows([mine], key)[0]

    specs = [
        spec
        for dtype, shape, index in LANES
        for spec in (tf.TensorSpec([None, *shape[1:]], dtype), tf.TensorSpec([None], index))
    ]
    large = SIZES[-1] // 3  # its rows of three words and an index pass the largest gather
    cases = [(0,) * 5, (3, 0, 7, 1, 2), (700, 40, 9, 33, 0), (large, 0, 5, 0, 0)]
    found, words, handed = [], [], {}
    traced = tf.function(moved, input_signature=specs, autograph=False)
    for counts in cases:
        # Worker 1's longest lanes are another worker's shortest.
        workers = [counts[w:] + counts[:w] if w < 2 else (0,) * 5 for w in range(group.size)]
        all_slices = [slices_of(w, counts) for w, counts in enumerate(workers)]
        for run in (moved, traced):
            with group.recorded() as record:
                got = run(*(x for s in all_slices[group.rank] for x in (s.values, s.indices)))
            found.append(all(same(t, lane) for t, lane in zip(got, zip(*all_slices))))
            handed[run] = record or handed[run]  # what is traced is not recorded again
            words.append([h.nbytes // 4 for h in handed[run]])
    return {"same": found, "words": words}


def same(total, lane):
    indices = np.concatenate([s.indices.numpy() for s in lane])
    values = np.concatenate([s.values.numpy() for s in lane])
    return (
        total.values.dtype == lane[0].values.dtype
        and total.values.numpy().tobytes() == values.tobytes()
        and np.array_equal(total.indices.numpy(), indices)
        and total.indices.dtype == lane[0].indices.dtype
    )


def answers():
    told = {
        "none": fitted(keras.optimizers.Adam(0.01), compressor="none"),
        "loop": fitted(keras.optimizers.Adam(0.01), 3, compressor="none"),
        "mixed": fitted(keras.optimizers.Adam(0.01), **MIXED),
        "eager": eager_steps(),
        "nan": nan_in_a_row_of_worker_1(),
        "rows": rows_of_every_dtype(),
    }
    if not models.KERAS_3:
        told["legacy"] = fitted(keras.optimizers.legacy.Adam(0.01), compressor="none")
    return told


if __name__ == "__main__":
    group = grace_tf.init(timeout=60)
    print(json.dumps(answers()), flush=True)
