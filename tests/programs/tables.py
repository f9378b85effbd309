"""Compressed rows of tables in a process group.  Prints a line of JSON."""

import hashlib
import json

import numpy as np
import tensorflow as tf
from this_keras import keras

import grace_tf

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
}
if not keras.__version__.startswith("3"):
    OPTIMIZERS["legacy"] = lambda: keras.optimizers.legacy.Adam(0.01)

ROWS, COLUMNS = 1_000_000, 64


def large_table():
    """(rows, bytes handed over) of steps that touch so many rows; whether SGD moved just these."""
    table = tf.Variable(tf.zeros([ROWS, COLUMNS]), name="table")
    aggregate = grace_tf.Aggregator("bf16", memory="none")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)], autograph=False)
    def step(tokens):
        grad = tf.IndexedSlices(
            tf.fill([tf.size(tokens), COLUMNS], 1.0 + group.rank),
            tokens,
            tf.constant([ROWS, COLUMNS]),
        )
        (total,) = aggregate([grad], [table])
        table.scatter_sub(tf.IndexedSlices(0.5 * total.values, total.indices))
        return tf.size(total.indices)

    told, wanted, moved = [], np.zeros(ROWS), True
    for count in (100, 1000, 8000):
        mine = [np.random.default_rng([rank, count]).integers(0, ROWS, count) for rank in (0, 1)]
        for rank, tokens in enumerate(mine):
            np.subtract.at(wanted, tokens, 0.25 * (1.0 + rank))
        rows = int(step(tf.constant(mine[group.rank])))
        touched = len({*mine[0], *mine[1]})
        told.append([len({*mine[group.rank]}), aggregate.bytes_per_step])
        moved &= rows == touched
    some = np.flatnonzero(wanted)
    found = tf.gather(table, some).numpy()
    moved &= bool((found == wanted[some, None]).all())
    moved &= float(tf.reduce_sum(table)) == float(wanted.sum() * COLUMNS)
    return {"told": told, "moved": moved, "handed": [h.kind for h in aggregate.handed]}


def ends(make, **keywords):
    """The weights of a model after 8 steps; worker 1 has fewer sentences, and no row at first."""
    draw = np.random.default_rng(group.rank)
    table = tf.Variable(np.random.default_rng(7).normal(size=[50, 4]).astype(np.float32))
    kernel = tf.Variable(np.random.default_rng(8).normal(size=[4, 1]).astype(np.float32))
    optimizer, aggregate = make(), grace_tf.Aggregator(min_elements=1, **keywords)
    if hasattr(optimizer, "build"):
        optimizer.build([table, kernel])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)], autograph=False)
    def step(tokens):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((tf.gather(table, tokens) @ kernel) ** 2) / 64.0
        rows, dense = tape.gradient(loss, [table, kernel])
        assert isinstance(rows, tf.IndexedSlices)
        rows = tf.convert_to_tensor(rows) if keywords["memory"] == "none" else rows
        optimizer.apply_gradients(zip(aggregate([rows, dense], [table, kernel]), [table, kernel]))

    for i in range(8):
        count = (0 if i == 0 else 9) if group.rank else 30
        step(tf.constant(draw.zipf(1.3, count).clip(1, 50) - 1, tf.int32))
    return [table.numpy().tolist(), kernel.numpy().tolist()]


def largest_rows():
    """For each method: the table, what waits here, and (rows touched here, bytes) of each step."""
    answers = {}
    for method in "topk", "chunktopk", "topk|values=qsgd:bits=8":
        table = tf.Variable(tf.zeros([20_000, COLUMNS]), name="table")
        aggregate, told = grace_tf.Aggregator(method), []

        @tf.function(
            input_signature=[tf.TensorSpec([None]), tf.TensorSpec([None], tf.int64)],
            autograph=False,
        )
        def step(scales, tokens, table=table, aggregate=aggregate):
            values = scales[:, None] * (1.0 + tf.range(COLUMNS, dtype=tf.float32))
            rows = tf.IndexedSlices(values, tokens, tf.constant([20_000, COLUMNS]))
            (total,) = aggregate([rows], [table])
            table.scatter_sub(total)

        for counts in (500, 0), (0, 0), (3000, 1), (6000, 9000):
            draw = np.random.default_rng([group.rank, *counts])
            count = counts[group.rank]
            tokens = draw.integers(0, 20_000, count)
            step(tf.constant(draw.normal(size=count), tf.float32), tf.constant(tokens))
            told.append([len({*tokens.tolist()}), aggregate.bytes_per_step])
        residual = aggregate.state.arrays()["table/memory/residual"]
        waiting = hashlib.sha256(residual.tobytes()).hexdigest()
        ours = hashlib.sha256(table.numpy().tobytes()).hexdigest()
        answers[method] = {"table": ours, "waiting": waiting, "told": told}
    return answers


if __name__ == "__main__":
    group = grace_tf.init(timeout=60)
    answers = {"large": large_table(), "largest": largest_rows()}
    for name, make in OPTIMIZERS.items():
        dense = ends(make, compressor="none", memory="none")
        answers[name] = [dense, ends(make, compressor="none", memory="residual")]
    print(json.dumps(answers), flush=True)
