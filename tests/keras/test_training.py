"""Whole trainings in real processes: what every worker ends with, and what must not train on."""

import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import replicas
import tensorflow as tf
import train
from launch import launch, launch_once
from this_keras import keras

import grace_tf
from grace_tf.cli import launcher

PROGRAM = pathlib.Path(train.__file__)
METHODS = [
    *grace_tf.available(),
    "topk:ratio=0.1|values=qsgd:bits=4,rounding=nearest",
    "none@adam",
    "qsgd:rounding=nearest>two_hop",
    "natural>two_hop",
]


def results(said: str) -> list[dict]:
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def fitted(method):
    """What each of two processes says of trainings with this method."""
    return [told for (told,) in launch_once("train.py", "fit", method).succeeded().answers()]


@pytest.mark.rotated
@pytest.mark.parametrize("method", METHODS)
def test_workers_and_runs_and_replicas_end_with_the_same_bits(method):
    first, second = fitted(method)
    (sha,) = {*first["shas"], *second["shas"]}
    strategy = replicas.mirrored(2)
    with strategy.scope():
        net = train.compiled(train.model(), train.optimizer(**train.spec_of(method)))
    net.fit(train.all_data(2), epochs=1, shuffle=False, verbose=0)
    assert train.sha(net) == sha
    taken = grace_tf.keras.aggregator_of(net.optimizer).bytes_per_step
    dense = method.startswith("none")  # then the host reduces, without our flag
    assert taken == first["bytes"] - (4 if dense else 0)
    # The methods differ, so equal SHAs are no accident of a model that does not learn.
    others = {told["shas"][0] for other in {"none", "qsgd"} - {method} for told in fitted(other)}
    assert sha not in others


@pytest.mark.parametrize("base", ["", "adam"])
def test_none_is_the_mean_computed_by_hand(base):
    net = train.compiled(train.model(), train.plain(base))
    gradients = traced_gradients(net)
    for (x0, y0), (x1, y1) in zip(train.data(0, 2), train.data(1, 2)):
        mean = [(a + b) / 2 for a, b in zip(gradients(x0, y0), gradients(x1, y1))]
        net.optimizer.apply_gradients(zip(mean, net.trainable_variables))
    assert train.sha(net) == fitted(f"none@{base}" if base else "none")[0]["shas"][0]


def traced_gradients(net):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def gradients(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, net(x, training=True))
        return tape.gradient(value, net.trainable_variables)

    return gradients


class NonFiniteTest(tf.test.TestCase):
    def test_a_nan_on_one_worker_leaves_state_alone_on_both(self):
        run = launch("train.py", "nan").succeeded()
        first, second = run.answers()
        self.assertEqual(first, second)
        plain, plain_end, scaled, scaled_end, mixed = first
        for step in (plain, scaled):
            self.assertGreater(step["leaves"], 1)  # the step counter and residuals
            self.assertTrue(step["state_untouched"])
            self.assertEqual(step["steps"], [5, 5])
        # Without loss scaling the optimizer sees the NaN, as without compression.
        self.assertFalse(plain["weights_finite"])
        self.assertTrue(scaled["weights_untouched"] and scaled["weights_finite"])
        self.assertEqual(scaled_end["end"], 6)
        # Under mixed_float16 both workers skip the step, and halve the scale once.
        self.assertEqual([mixed["policy"], mixed["end"]], ["float16", train.STEPS - 1])
        self.assertEqual(mixed["scale"], 2.0**14)
        self.assertTrue(mixed["weights_finite"])
        for rank, what in enumerate(["a gradient of another worker, or the sum", "its gradient"]):
            self.assertIn(f"Worker {rank} of 2: in step 5 {what}", run.said()[rank])


class CallbackTest(tf.test.TestCase):
    def test_weights_are_broadcast_and_metrics_and_statistics_become_means(self):
        run = launch("train.py", "callback").succeeded()
        (*before0, after0), (*before1, after1) = run.answers()
        self.assertEqual(after0, after1)
        for epoch, (own0, own1) in enumerate(zip(before0, before1)):
            self.assertNotEqual(own0["own"], own1["own"])
            self.assertAllClose(after0["losses"][epoch], (own0["own"] + own1["own"]) / 2)
        mean = (np.array(before0[-1]["moving"]) + np.array(before1[-1]["moving"])) / 2
        self.assertAllClose(after0["moving"], mean)
        self.assertNotAllClose(before0[-1]["moving"], before1[-1]["moving"])


@pytest.mark.parametrize(
    "mistake, sentences",
    [
        ("no_init", [r"RuntimeError: .*one of 2 workers.*grace_tf\.init\(\)"] * 2),
        (
            "wrapped_once",
            [
                r"RuntimeError: .*worker 1 failed: RuntimeError: .* its SGD is not wrapped",
                r"RuntimeError: .*not wrapped.*grace_tf\.wrap\(\)",
            ],
        ),
    ],
)
def test_mistakes_end_in_one_sentence_on_every_worker(mistake, sentences):
    run = launch("train.py", mistake)
    said = run.said()
    assert run.code not in (0, launcher.TIMED_OUT)
    for rank, sentence in enumerate(sentences):
        assert "trained" not in said[rank]
        # Keras 2 puts its own lines between the error's name and the sentence.
        assert re.search(sentence, " ".join(said[rank].split())), said[rank]


class LinkTest(tf.test.TestCase):
    @pytest.mark.slow
    def test_the_interface_sees_the_bytes_that_were_announced(self):
        """Two numbers of steps apart, so that start-up and broadcast cancel."""
        run = [sys.executable, "-m", "grace_tf", "run", "-np", "2", str(PROGRAM), "bytes"]
        command = [*own_network(), *run, "10", "40"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        told = results(done.stdout)  # worker 0's lines, which are printed as they are
        self.assertLen(told, 2 * len(train.EXCHANGED))
        for first, last in zip(told[::2], told[1::2]):
            announced, what = last["bytes"], f"{last['spec']} of {last['dtype']}"
            per_step = (last["carried"] - first["carried"]) / 30
            # The loopback device counts what both workers send. Headers may add a tenth.
            self.assertGreater(per_step, 2 * announced, what)
            self.assertLess(per_step, 1.1 * 2 * announced, what)
            self.assertEqual(last["sent"], announced, what)  # as explain says, of two workers
            if last["spec"] != "qsgd":
                self.assertAllInRange(announced, 4_000_000, 4_000_100)  # 16 bits an element


def own_network() -> list[str]:
    """A prefix that gives a command a loopback device of its own, where this user may make one."""
    prefix = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    try:
        works = subprocess.run([*prefix, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        works = False
    return prefix if works else []
