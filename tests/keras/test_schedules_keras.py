"""Schedules follow an optimizer's iterations: in fit, in loops, under strategies, in files."""

import functools
import json
import logging

import numpy as np
import pytest
import tensorflow as tf
from digests import digest
from launch import launch_once
from models import (
    KERAS_3,
    compiled,
    data,
    embedding,
    embedding_loop,
    loop,
    loss_scaled,
    model,
    sha,
    shas,
)
from replicas import mirrored
from schedule_cases import MIXED, SPEC, STEPS, gradients_of
from this_keras import keras

import grace_tf
from grace_tf.keras import aggregator_of
from grace_tf.testing.workers import Workers

BYTES = (852, 260, 436, 112)  # of the stages of SPEC: matrices of 8 × 16 and 16 × 4, and biases
SENT = [BYTES[0]] * 2 + [BYTES[1]] * 2 + [BYTES[2]] * 2 + [BYTES[3]] * 4


def wrapped(spec=SPEC, momentum=0.9, **keywords):
    sgd = keras.optimizers.SGD(0.1, momentum=momentum, **keywords)
    return grace_tf.wrap(sgd, spec, min_elements=1, seed=4)


class Watch(keras.callbacks.Callback):
    """Keeps (iterations, bytes) after every batch."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        steps = int(self.model.optimizer.iterations.numpy())
        self.seen.append((steps, aggregator_of(self.model.optimizer).bytes_per_step))


def fitted(strategy=None, **keywords):
    """A model after ten steps of fit, and what was seen after the batches."""
    made, watch = compiled(wrapped, strategy, **keywords), Watch()
    x, y = data(10)
    made.fit(x, y, batch_size=24, shuffle=False, verbose=0, callbacks=[watch])
    return made, watch.seen


@functools.cache
def wanted(replicas=1):
    """The digest of the weights after ten steps, traced one by one."""
    return sha(fitted(None if replicas == 1 else mirrored(replicas))[0])


@pytest.mark.parametrize("replicas", (1, 2))
def test_fit(replicas, caplog):
    strategy = None if replicas == 1 else mirrored(replicas)
    with caplog.at_level(logging.INFO, "grace_tf"):
        made, seen = fitted(strategy)
    assert seen == [(i + 1, sent) for i, sent in enumerate(SENT)]
    assert len(set(shas(made, strategy))) == 1
    begun = [r.args[0] for r in caplog.records if "of the schedule begins" in r.getMessage()]
    assert begun == [0, 2, 4, 6]


@pytest.mark.parametrize("replicas", (1, 2))
def test_several_steps_in_one_execution(replicas):
    made, seen = fitted(None if replicas == 1 else mirrored(replicas), steps_per_execution=5)
    assert sha(made) == wanted(replicas)
    assert seen == [(5, BYTES[2]), (10, BYTES[3])]


def test_eager_steps_end_with_the_same_weights():
    made, seen = fitted(run_eagerly=True)
    assert seen == [(i + 1, sent) for i, sent in enumerate(SENT)]
    traced, _ = fitted()
    for ours, theirs in zip(made.get_weights(), traced.get_weights()):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cut", (2, 5))
def test_a_saved_model_goes_on_in_the_middle(cut, tmp_path):
    x, y = data(10)
    made = compiled(wrapped)
    made.fit(x[: 24 * cut], y[: 24 * cut], batch_size=24, shuffle=False, verbose=0)
    path = str(tmp_path / "model.keras")
    made.save(path)
    loaded = keras.models.load_model(path)
    first, second = (aggregator_of(m.optimizer) for m in (made, loaded))
    assert second.settings == first.settings
    assert json.loads(loaded.optimizer.get_config()["grace"])["compressor"] == SPEC
    loaded.fit(x[24 * cut :], y[24 * cut :], batch_size=24, shuffle=False, verbose=0)
    assert sha(loaded) == wanted()


@pytest.mark.parametrize(
    "spec", ("topk@0;signum@6", "signum@0;signsgd@6", "signum@0;powersgd:rank=1@6")
)
def test_a_stage_with_a_memory_of_its_own_goes_on_from_a_file(spec, tmp_path):
    x, y = data(10)
    ends = []
    for cut in (10, 4, 7):
        # A stage's memory is a momentum already.
        made = compiled(lambda: wrapped(spec, momentum=0.0))
        path = str(tmp_path / "model.keras")
        made.fit(x[: 24 * cut], y[: 24 * cut], batch_size=24, shuffle=False, verbose=0)
        if cut < 10:
            made.save(path)
            made = keras.models.load_model(path)
            made.fit(x[24 * cut :], y[24 * cut :], batch_size=24, shuffle=False, verbose=0)
        ends.append(sha(made))
    assert len(set(ends)) == 1


def test_steps_that_a_loss_scale_refuses_count_as_iterations_do():
    variable = tf.Variable(tf.zeros([40]))
    inner = grace_tf.wrap(keras.optimizers.SGD(1.0), "topk:ratio=0.5@0/0.1@2", min_elements=1)
    optimizer = loss_scaled(inner, initial_scale=1.0)

    @tf.function
    def step(grad):
        optimizer.apply_gradients([(grad, variable)])

    moved = []
    for poison in (0.0, np.nan, np.nan, 0.0, 0.0):
        before = variable.numpy()
        step(tf.range(1.0, 41.0) + poison)
        moved.append(np.count_nonzero(variable.numpy() - before))
    # Keras 2 counts them: its iterations go on.
    assert moved == [20, 0, 0, *([20] if KERAS_3 else [4]), 4]


@pytest.mark.skipif(KERAS_3, reason="Keras 3 has no legacy optimizers")
@pytest.mark.parametrize("replicas", (1, 2))
def test_legacy_optimizers(replicas):
    def made():
        sgd = keras.optimizers.legacy.SGD(0.1, momentum=0.9)
        return grace_tf.wrap(sgd, SPEC, min_elements=1, seed=4)

    watch, (x, y) = Watch(), data(10)
    trained = compiled(made, None if replicas == 1 else mirrored(replicas))
    trained.fit(x, y, batch_size=24, shuffle=False, verbose=0, callbacks=[watch])
    assert watch.seen == [(i + 1, sent) for i, sent in enumerate(SENT)]


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 accumulates no gradients")
@pytest.mark.parametrize("replicas", (1, 2))
def test_accumulated_steps_count_once(replicas):
    strategy = None if replicas == 1 else mirrored(replicas)
    made = compiled(lambda: wrapped(gradient_accumulation_steps=2), strategy)
    x, y = data(10)
    watch = Watch()
    made.fit(x, y, batch_size=24, shuffle=False, verbose=0, callbacks=[watch])
    assert [sent for _, sent in watch.seen[1::2]] == [*BYTES[:1] * 2, *BYTES[1:2] * 2, BYTES[2]]


def of_two_processes(kind):
    """What two workers print."""
    told = launch_once("scheduled.py", kind).succeeded().answers()
    return {worker: answers[-1] for worker, answers in enumerate(told)}


def test_plain_processes():
    workers = Workers(2, SPEC, seed=4)
    bits, sent = [], []
    for i in range(STEPS):
        bits.append(digest(workers([gradients_of(i, w) for w in range(2)])[0][:1]))
        sent.append(workers.bytes_per_step)
    answers = of_two_processes("group")
    for answer in answers.values():
        for how in ("eager", "traced"):
            assert answer[how] == {"bits": bits, "bytes": sent, "step": STEPS}, how
    begun = [text.split(":")[0] for text in answers[0]["said"]]
    assert begun == ["Step 0", "Step 2", "Step 4", "Step 6"] * 2
    assert answers[1]["said"] == []  # one worker says it for all


def test_a_strategy_of_two_processes():
    strategy, answers = mirrored(2), of_two_processes("strategy")
    for name, make, train, spec in (
        ("model", model, loop, SPEC),
        ("rows", embedding, embedding_loop, MIXED),
    ):
        with strategy.scope():
            made = make()
            optimizer = wrapped(spec)
        train(made, optimizer, strategy, 10)
        for answer in answers.values():
            assert answer[name]["sha"] == sha(made), name
    assert [answers[rank]["model"]["bytes"] for rank in (0, 1)] == [BYTES[3]] * 2
    stages = [[line for line in answers[rank]["said"] if "stage" in line] for rank in (0, 1)]
    assert len(stages[0]) == 6 and stages[1] == []
