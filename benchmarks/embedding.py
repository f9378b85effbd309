"""What compressing the rows of an Embedding costs in accuracy: two workers, words by Zipf's law.

    python benchmarks/embedding.py --out benchmarks/results/embedding.jsonl

A document has 20 words of 5,000, word i with a probability in proportion to 1 / i.  Each word has a
random score for each of 10 classes, and the class of a document is the one of the largest sum.  The
model adds up the words' rows of a table, 5000 × 32, and multiplies them by a matrix, which travels
uncompressed.  Two workers take 64 documents each in a step; they share one process, and each has
its own gradient and residual.  A document is seen once.

Per method, optimizer and seed: the accuracy in percent on 4,000 documents that were not seen, and
how many rows the mean of a step has.  `none` leaves both as they are.
"""

from __future__ import annotations

import argparse
import json
import statistics

import keras
import numpy as np
import tensorflow as tf

import grace_tf
from grace_tf.transports.loopback import Loopback
from grace_tf.transports.rows import summed

WORDS, COLUMNS, LENGTH, CLASSES, BATCH = 5000, 32, 20, 10, 64
SHARES = (0.05, 0.1, 0.25, 0.5)
METHODS = ["none", *(f"topk:row_ratio={s}" for s in SHARES), "topk|values=qsgd:bits=4", "stc"]
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.3),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.005),
}
SCORES = np.random.default_rng(99).normal(size=(WORDS, CLASSES))


def documents(seed, count):
    """(words, classes) of so many documents."""
    share = 1 / np.arange(1, WORDS + 1)
    words = np.random.default_rng(seed).choice(WORDS, (count, LENGTH), p=share / share.sum())
    return words, SCORES[words].sum(1).argmax(1)


def trained(method, optimizer, seed, steps):
    """(accuracy in percent, rows of the mean of a step)."""
    words, classes = documents([seed, 1], steps * 2 * BATCH)
    words, classes = words.reshape(steps, 2, BATCH, LENGTH), classes.reshape(steps, 2, BATCH)
    draw = np.random.default_rng([seed, 3])
    table = tf.Variable(0.1 * draw.normal(size=(WORDS, COLUMNS)).astype(np.float32), name="table")
    kernel = tf.Variable(0.3 * draw.normal(size=(COLUMNS, CLASSES)).astype(np.float32), name="out")
    optimizer.build([table, kernel])
    aggregate = grace_tf.Aggregator(method, min_elements=1, exclude="out.*")
    rows = tf.Variable(0, dtype=tf.int64)

    def gradients(x, y):
        with tf.GradientTape() as tape:
            logits = tf.reduce_sum(tf.gather(table, x), 1) @ kernel
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_mean(losses) / 2  # as Keras divides it between two workers
        return tape.gradient(loss, [table, kernel])

    @tf.function(autograph=False)
    def step(x, y):
        grads = [gradients(x[w], y[w]) for w in range(2)]
        if method == "none":  # the host's own sum
            (a, dense), (b, other) = grads
            values, indices = (
                tf.concat([a.values, b.values], 0),
                tf.concat([a.indices, b.indices], 0),
            )
            total = [summed(values, indices, a.dense_shape), dense + other]
        else:
            total = aggregate.aggregate_replicas(Loopback(2), grads, [table, kernel], [None] * 2)[0]
        rows.assign_add(tf.size(total[0].indices, out_type=tf.int64))
        optimizer.apply_gradients(zip(total, [table, kernel]))

    for x, y in zip(words, classes):
        step(tf.constant(x), tf.constant(y))
    words, classes = documents([seed, 2], 4000)
    found = (table.numpy()[words].sum(1) @ kernel.numpy()).argmax(1)
    return 100 * float((found == classes).mean()), int(rows) / steps


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--optimizers", nargs="+", default=list(OPTIMIZERS), choices=OPTIMIZERS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out")
    args = parser.parse_args()
    for name in args.optimizers:
        for method in args.methods:
            make, ends = OPTIMIZERS[name], []
            for seed in args.seeds:
                ends.append(trained(method, make(), seed, args.steps))
                accuracy, rows = ends[-1]
                line = {"optimizer": name, "method": method, "seed": seed, "steps": args.steps}
                line |= {"accuracy": round(accuracy, 2), "rows": round(rows, 1)}
                if args.out:
                    with open(args.out, "a", encoding="utf-8") as file:
                        print(json.dumps(line), file=file)
            found, rows = (statistics.mean(column) for column in zip(*ends))
            print(f"{name}  {method}  {found:.2f} %  {rows:.0f} rows", flush=True)


if __name__ == "__main__":
    main()
