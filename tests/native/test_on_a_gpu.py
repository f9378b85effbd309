"""Training on a GPU: every method gives there what it gives on the CPU.

These tests need a GPU that TensorFlow sees, and are skipped elsewhere; the kernels themselves are
tested without TensorFlow (docs/gpu.md) and emulated (test_cuda_emulated.py).
"""

import numpy as np
import pytest
import replicas  # noqa: F401  (four virtual CPUs, before TensorFlow starts its devices)
import tensorflow as tf

import grace_tf
from grace_tf.core import registry
from grace_tf.ops.backend import cuda

SPECS = [spec for entry in registry.entries() for spec in (entry.name, *entry.examples)]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="there is no GPU"),
]
# TensorFlow computes the singular values of `atomo` and the sums over bins of `adacomp`. The last
# bits of its results on a GPU differ from those on the CPU.
OF_TENSORFLOW = ("atomo", "adacomp")
SHAPES = [(3, 3, 8, 5), (5,), (70, 41), (2500,), (1,), (64, 48)]


def gradients(step):
    draw = np.random.default_rng(step)
    grads = [draw.normal(size=shape).astype(np.float32) for shape in SHAPES]
    if step == 2:
        grads[2][0, 0] = np.inf  # a step that is left out
    return grads


def steps(spec, device, compiled):
    """Runs four steps on a device. Returns all outputs, and the kinds of device they lie on."""
    with tf.device(device):
        variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
        aggregate = grace_tf.Aggregator(spec, min_elements=1, seed=3)

        def step(grads):
            return aggregate(grads, variables)

        run = tf.function(step) if compiled else step
        results = []
        for number in range(4):
            outputs = run([tf.constant(grad) for grad in gradients(number)])
            results += [np.asarray(output) for output in outputs]
        placed = {tf.DeviceSpec.from_string(output.device).device_type for output in outputs}
    return results, placed


def test_the_kernels_run_here():
    assert cuda.why_not() == ""


@pytest.mark.parametrize("compiled", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize("spec", SPECS)
def test_every_method_gives_the_bits_of_the_cpu(spec, compiled):
    expected, _ = steps(spec, "/CPU:0", compiled)
    results, placed = steps(spec, "/GPU:0", compiled)
    assert placed == {"GPU"}
    for ours, theirs in zip(results, expected):
        if spec.startswith(OF_TENSORFLOW):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)
            continue
        finite = np.isfinite(theirs)
        assert np.array_equal(np.isfinite(ours), finite)
        assert ours[finite].tobytes() == theirs[finite].tobytes()


@pytest.mark.parametrize("spec", ["qsgd", "qsgd:bits=8@0/4@2"])
def test_xla_compiles_a_step(spec):
    """XLA cannot read the counters of a step where they lie in the host's memory."""
    variables = [tf.Variable(tf.zeros([40, 50]))]
    totals = []
    for jit_compile in (False, True):
        aggregate = grace_tf.Aggregator(spec, min_elements=1, seed=3)
        step = tf.function(
            lambda grads, of=aggregate: of(grads, variables), jit_compile=jit_compile
        )
        for number in range(4):
            (total,) = step([tf.random.stateless_normal([40, 50], [1, number])])
        totals.append(total.numpy())
    np.testing.assert_allclose(*totals, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("door", ["wrap", "wrap under a strategy", "CompressedAllReduce"])
@pytest.mark.parametrize("jit_compile", [False, "auto"])
def test_a_model_trains(door, jit_compile):
    """With "auto", which is Keras' default, XLA compiles the model on a GPU."""
    compressing = grace_tf.CompressedAllReduce("qsgd", min_elements=1)
    strategies = {
        "wrap": tf.distribute.get_strategy,
        "wrap under a strategy": lambda: tf.distribute.MirroredStrategy(["GPU:0"]),
        "CompressedAllReduce": lambda: tf.distribute.MirroredStrategy(
            ["GPU:0"], cross_device_ops=compressing
        ),
    }
    x = np.random.default_rng(1).normal(size=(512, 20)).astype(np.float32)
    with strategies[door]().scope():
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential([tf.keras.layers.Dense(30, "relu"), tf.keras.layers.Dense(1)])
        optimizer = tf.keras.optimizers.SGD(0.05)
        if door != "CompressedAllReduce":
            optimizer = grace_tf.wrap(optimizer, "qsgd", min_elements=1)
        model.compile(optimizer, "mse", jit_compile=jit_compile)
    first, *_, last = model.fit(x, x[:, :3].sum(1), epochs=5, verbose=0).history["loss"]
    assert last < 0.5 * first
