"""What each cell of the matrix must have found: among workers, among engines, and by NumPy."""

from __future__ import annotations

import functools
import re

import cell_features
import numpy as np
from cell_engine import RATE, STEPS, Engine
from cell_runs import ENGINES, facts_of
from replicas import mirrored
from this_keras import KERAS_3

# The table of docs/engines.md for this Keras. tf_keras must have the same cells as Keras 2.
MATRIX_OF = "2.21" if KERAS_3 else "2.15"
STRATEGIES = ("Mirrored 2", "MWMS 2", "MWMS 3", "MWMS 2 × 2")
OF_TWO = ("Mirrored 2", "MWMS 2", "process group 2", "Horovod 2")
# TensorFlow rounds the arithmetic of BatchNormalization otherwise there; these are only close.
OTHER_BITS = {("MWMS 2", "batchnorm"), ("MWMS 2", "syncbn")}
# The only sentences by which a cell may be refused, and what the matrix makes of them.
REFUSALS = {
    r"RuntimeError: The BatchNormalization 'norm' is to be synchronised, but Keras does that only "
    r"under a tf\.distribute strategy and not between plain processes: make it with .*\.": (
        "Keras synchronises under strategies only"
    ),
    r"TypeError: gradient_accumulation_steps is not a valid argument, .*\.": (
        "Keras 2 has no such argument"
    ),
    r"RuntimeError: (in user code:(.|\n)* RuntimeError: )?"  # Keras 2 puts a traceback before it
    r"XLA compiles for one device, but the replicas of this .*\.\s*": (
        "Keras 2 compiles the exchange too"
    ),
}


def answer(engine, cell):
    """`yes`, or `refused: why`; AssertionError where the cell is neither."""
    methods = {method: facts for (of, method), facts in facts_of(engine).items() if of == cell}
    assert {"none", "mixed"} <= set(methods)
    sentences = {told.get("refused") for workers in methods.values() for told in workers}
    if sentences != {None}:
        (sentence,) = sentences  # the same of every worker and method
        assert all(told["untouched"] for workers in methods.values() for told in workers)
        assert not np.any([workers[0].get("step") for workers in methods.values()])
        (why,) = [why for pattern, why in REFUSALS.items() if re.fullmatch(pattern, sentence)]
        return f"refused: {why}"
    for method, workers in methods.items():
        assert len(workers) == ENGINES[engine][1]
        end = common_end(workers)
        if engine in OF_TWO and (engine, cell) not in OTHER_BITS:
            mirrored_too = facts_of("Mirrored 2")[cell, method]
            if "refused" not in mirrored_too[0]:
                assert end == common_end(mirrored_too), method
        if method != "plain":
            CHECKS[cell](Found(engine, method), workers)
    assert common_end(methods["none"]) != common_end(methods["mixed"])
    if "plain" in methods:
        assert common_end(methods["plain"]) == common_end(methods["none"])
    assert [told["step"] for told in methods["mixed"]] == [STEPS_TAKEN.get(cell, 2 * STEPS)] * len(
        methods["mixed"]
    )
    return "yes"


STEPS_TAKEN = dict.fromkeys(("lossscale", "overflow", "accumulation", "xla"), STEPS)


def common_end(workers):
    """The digest with which all replicas of all workers end."""
    (end,) = {sha for told in workers for sha in told["shas"]}
    return end


class Found:
    """What else is known: other cells of this engine, and this cell elsewhere."""

    def __init__(self, engine, method):
        self.engine, self.method = engine, method

    def cell(self, name, engine=None):
        """The facts of each worker."""
        return facts_of(engine or self.engine)[name, self.method]


def close(one, other, tolerance=1e-5):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def same(workers, name):
    """The fact of this name, which must be the same on all workers."""
    first, *others = [told[name] for told in workers]
    assert all(other == first for other in others), name
    return first


class Dealt(Engine):
    """Replicas of one process that get the rows which TensorFlow deals to two processes of two."""

    def batches(self, steps=STEPS, seed=0):
        # It deals batches of a replica's size to one process after the other.
        return [[step[i] for i in (0, 2, 1, 3)] for step in super().batches(steps, seed)]


@functools.cache
def in_one_process(replicas, method):
    kind = Dealt if replicas == 4 else Engine
    return cell_features.fit(kind(mirrored(replicas), 0, replicas), method)


# How a training on known gradients ends, alone and between two workers: on every engine, TensorFlow
# and Keras, whether operations are native or not.
KNOWN = {
    ("none", True): "22ea572a5603",
    ("none", False): "94faf9e2ea7a",
    ("mixed", True): "66eeba591601",
    ("mixed", False): "21645a84caea",
}


def fit(found, workers):
    if found.engine in ("alone", *OF_TWO):
        ends = {sha for told in workers for sha in told["known"]}
        assert ends == {KNOWN[found.method, found.engine == "alone"]}
    logs = same(workers, "logs")
    assert logs["loss"][1] < logs["loss"][0]
    weights = same(workers, "weights")
    if found.engine in OF_TWO and found.method == "none":
        close(weights, found.cell("fit", "alone")[0]["weights"])
    several = {"MWMS 3": 3, "MWMS 2 × 2": 4}.get(found.engine)
    if several:
        close(weights, in_one_process(several, found.method)["weights"])
        close([logs["loss"]], [in_one_process(several, found.method)["logs"]["loss"]])


def validation(found, workers):
    assert common_end(workers) == common_end(found.cell("fit"))
    logs = same(workers, "logs")
    assert set(logs) == {"loss", "mae", "val_loss", "val_mae"}
    for told in workers:
        close(told["predicted"], told["wanted"])
    computed = np.mean([told["computed"] for told in workers], 0)
    close([logs["val_loss"][-1], logs["val_mae"][-1]], computed)
    if found.engine in STRATEGIES:
        close(same(workers, "evaluated"), computed)
        assert len(workers[0]["predicted"]) == len(workers[0]["wanted"])
    else:  # each process evaluates what it is given
        for told in workers:
            close(told["evaluated"], told["computed"])


def replicas_statistics(workers):
    """Of each statistic the values of all replicas."""
    return [[row for rows in of for row in rows] for of in zip(*(w["statistics"] for w in workers))]


def batchnorm(found, workers):
    own = replicas_statistics(workers)
    if found.engine in OF_TWO:
        mirror = replicas_statistics(found.cell("batchnorm", "Mirrored 2"))
    if found.engine not in STRATEGIES:
        read = same(workers, "read")  # the callback's means
        if found.engine in OF_TWO:
            close(read, np.mean(mirror, 1))
        return
    assert all(not np.allclose(rows[0], rows[1]) for rows in own)
    if found.engine in OF_TWO:
        close(own, mirror)
        close(workers[0]["weights"], found.cell("batchnorm", "Mirrored 2")[0]["weights"])
    for told in workers:  # Keras 3 reads a replica's own, Keras 2 the mean
        first = [rows[0] for rows in told["statistics"]]
        close(told["read"], first if KERAS_3 else np.mean(own, 1))


def syncbn(found, workers):
    for rows in replicas_statistics(workers):
        assert all(row == rows[0] for row in rows)
    if found.engine == "alone":
        close(workers[0]["weights"], found.cell("batchnorm")[0]["weights"])
    elif found.engine in OF_TWO:
        close(workers[0]["weights"], found.cell("syncbn", "Mirrored 2")[0]["weights"])
    if found.engine in OF_TWO and found.method == "none":
        alone = found.cell("syncbn", "alone")[0]  # in one batch of all rows
        close(same(workers, "weights"), alone["weights"])
        close(workers[0]["read"], alone["read"])
    if found.engine not in ("alone", "MWMS 2 × 2"):
        assert common_end(workers) != common_end(found.cell("batchnorm"))


def lossscale(found, workers):
    """As if the step had not been: that is half of the training that is saved and resumed."""
    before, after = same(workers, "scales")
    assert after == before / 2
    assert [workers[0]["shas"][0]] == list({*found.cell("resume")[0]["half"]})


def overflow(found, workers):
    before, after = same(workers, "scales")
    skipped = int(found.method == "mixed")
    assert after == before / 2**skipped
    # Keras 2 counts steps that it skips.
    assert same(workers, "iterations") == STEPS + (0 if KERAS_3 else skipped)
    assert common_end(workers) == workers[0]["without"][0]


def accumulation(found, workers):
    before, each = same(workers, "before"), same(workers, "each")
    assert each[0::2] == [before, *each[1:-1:2]]  # between two updates nothing moves
    assert len({before, *each}) == 1 + len(each) // 2
    if found.method == "none":
        close(workers[0]["weights"], workers[0]["at once"])
        return
    # Of the mean (2, .5, 2) the squares are (4, .25, 4) and 1.5 of those of the halves
    # (3, 1.875, 3.75), so that two elements stand out; of a mean alone none would.
    replicas = max(len(workers), len(workers[0]["shas"]))
    factors = np.arange(1.0, replicas + 1)[:, np.newaxis]
    wanted = {"r": [0, 0.5, 0], "v": [0, 0.999 * 1.25, 0], "s": [0, 0, 0]}
    known = [told["known"] for told in workers]
    for leaf, row in wanted.items():
        rows = [row for told in known for row in told[leaf]]
        close(rows, row * factors ** (1 if leaf == "r" else 2), 1e-6)
    close([told["step"] for told in known], [[-factors.mean() * x for x in (2, 0, 2)]] * len(known))


def xla(found, workers):
    for each, without in zip(workers, found.cell("fit"), strict=True):
        assert all(each["compiled"])
        assert each["shas"] == without["known"]


def steps_per_execution(found, workers):
    assert common_end(workers) == common_end(found.cell("fit"))
    close([same(workers, "logs")["loss"]], [found.cell("fit")[0]["logs"]["loss"]])


def ema(found, workers):
    assert same(workers, "off") < 1e-6
    assert workers[0]["from the last"] > 1e-3
    assert same(workers, "each")[-1] == common_end(found.cell("fit"))


def clipping(found, workers):
    assert common_end(workers) != common_end(found.cell("fit"))
    for kind, clip in CLIPS.items():
        replicas = max(len(workers), len(workers[0]["shas"]))
        wanted, residuals = known_step(found, clip, replicas)
        close(same([told[kind] for told in workers], "steps"), [-step for step in wanted], 1e-6)
        if found.method == "mixed":
            kept = zip(*(told[kind]["residuals"] for told in workers))
            close([[row for rows in of for row in rows] for of in kept], residuals, 1e-6)


def known_step(found, clip, count):
    """The step and the residuals that a known gradient must lead to."""
    own = [[factor * np.array([3.0, 4]), factor * np.array([6.0, 8])] for factor in (1, 0.1, 0.1)]
    own = own[:count]
    # Under a strategy Keras divides the loss by the number of replicas.
    divided = count if found.engine in STRATEGIES else 1
    if KERAS_3:  # each worker's own gradient, before the exchange
        own = [[divided * g for g in clip([g / divided for g in grads])] for grads in own]
    sent = own
    if found.method == "mixed":
        sent = [[np.where(np.arange(2) == g.argmax(), g, 0) for g in grads] for grads in own]
    mean = [np.mean(grads, 0) for grads in zip(*sent)]
    residuals = np.subtract(own, sent).swapaxes(0, 1)
    return mean if KERAS_3 else clip(mean), residuals


def by_norm(grads):
    return [g / max(1, np.linalg.norm(g)) for g in grads]


def by_global_norm(grads):
    return [g / max(1, np.linalg.norm(grads)) for g in grads]


def by_value(grads):
    return [np.clip(g, -1, 1) for g in grads]


CLIPS = {"clipnorm": by_norm, "global_clipnorm": by_global_norm, "clipvalue": by_value}


def decay(found, workers):
    assert same(workers, "off") < 1e-6
    assert workers[0]["left"] < 0.7


def resume(found, workers):
    assert common_end(workers) == common_end(found.cell("fit"))
    assert workers[0]["half"] != workers[0]["shas"]


def callbacks(found, workers):
    assert common_end(workers) != common_end(found.cell("fit"))
    np.testing.assert_allclose(same(workers, "rates"), [RATE, RATE / 2])
    assert same(workers, "logs")["loss"][0] == found.cell("fit")[0]["logs"]["loss"][0]
    others = [f"rank{rank}/end.weights.h5" for rank in range(1, len(workers))]
    for told in workers:
        assert told["saved"] == told["shas"]
        assert told["files"] == ["end.weights.h5", *others]


def uneven(found, workers):
    same(workers, "logs")
    assert common_end(workers) != common_end(found.cell("fit"))


CHECKS = {
    check.__name__: check
    for check in (
        *(fit, validation, batchnorm, syncbn, lossscale, overflow, accumulation, xla),
        *(steps_per_execution, ema, clipping, decay, resume, callbacks, uneven),
    )
}
