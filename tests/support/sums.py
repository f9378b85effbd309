"""Whether gradients that are compressed with a residual add up."""

import numpy as np

from grace_tf.testing import Workers, cases

SIZE = 3
SHAPES = ((40, 30), (257,))


def conserves(test, spec, steps=50, tolerance=1e-5):
    """The sum of a worker's gradients is that of what it sent and its residual, within rounding.

    What a worker sent is what the others receive of it: each worker's gradients go alone through
    the same steps, and then all of them together, where the aggregates must be the mean.
    """

    def grads(worker, step):
        return [cases.normal(shape, 1000 * worker + step) for shape in SHAPES]

    apart, alone = [], []
    for w in range(SIZE):
        workers = Workers(1, spec, memory="residual")
        sent, total = [np.zeros(shape) for shape in SHAPES], [np.zeros(shape) for shape in SHAPES]
        for step in range(steps):
            mine = grads(w, step)
            for i, result in enumerate(workers([mine])[0]):
                sent[i] += np.asarray(result, np.float64)
                total[i] += mine[i]
        kept = workers.state.arrays()
        for i in range(len(SHAPES)):
            test.assertAllClose(
                sent[i] + kept[f"{i}/memory/residual"][0], total[i], atol=tolerance * steps
            )
        apart.append(sent)
        alone.append([kept[f"{i}/memory/residual"][0] for i in range(len(SHAPES))])
    workers = Workers(SIZE, spec, memory="residual")
    means = [np.zeros(shape) for shape in SHAPES]
    for step in range(steps):
        for i, result in enumerate(workers([grads(w, step) for w in range(SIZE)])[0]):
            means[i] += np.asarray(result, np.float64)
    kept = workers.state.arrays()
    for i in range(len(SHAPES)):
        test.assertAllClose(means[i], np.mean([s[i] for s in apart], 0), atol=tolerance * steps)
        test.assertAllClose(kept[f"{i}/memory/residual"], np.stack([a[i] for a in alone]))
