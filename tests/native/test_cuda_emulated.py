"""The operations' way to the CUDA kernels, with kernels that run emulated on the processor.

What an operation does for a GPU (its lists, its workspace, its outputs) is done here in the CPU's
memory, by a library made of the same .cu files. Every method gives the bits that it gives by the
CPU's kernels.
"""

import fcntl
import pathlib
import shutil
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.core import registry
from grace_tf.core.context import Context
from grace_tf.ops.backend import arguments, native

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "custom_ops"
SPECS = [spec for entry in registry.entries() for spec in (entry.name, *entry.examples)]
pytestmark = [
    pytest.mark.slow,  # the first builds the library
    pytest.mark.skipif(not native.available(), reason=native.why_not()),
    pytest.mark.skipif(not (ROOT / "custom_ops").is_dir(), reason="the C++ sources are not here"),
    pytest.mark.skipif(not (shutil.which("g++") and shutil.which("make")), reason="no compiler"),
]


@pytest.fixture(scope="module")
def library():
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / "emulated.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test process may be building it
        make = ["make", "-s", "-j2", "-C", str(ROOT / "custom_ops"), "emulated"]
        subprocess.run(make, check=True)
    return BUILD / "libgrace_cuda_emulated.so"


def steps(spec):
    """Three steps of a list of gradients, and what becomes of them."""
    draw = np.random.default_rng(5)
    shapes = [(3, 3, 8, 5), (5,), (70, 41), (2500,), (1,)]
    variables = [tf.Variable(tf.zeros(shape)) for shape in shapes]
    aggregate = grace_tf.Aggregator(spec, min_elements=1, seed=3)
    results = []
    for step in range(4):
        grads = [draw.normal(size=shape).astype(np.float32) for shape in shapes]
        if step == 2:
            grads[2][0, 0] = np.inf  # a step that is left out
        results += [np.asarray(x) for x in aggregate(list(map(tf.constant, grads)), variables)]
    return results


@pytest.mark.rotated
@pytest.mark.parametrize("spec", SPECS)
def test_every_method_gives_the_same_bits(library, spec):
    expected = steps(spec)
    native._settings().grace_emulate_cuda(str(library).encode())
    try:
        for ours, theirs in zip(steps(spec), expected):
            finite = np.isfinite(theirs)
            assert np.array_equal(np.isfinite(ours), finite)
            assert ours[finite].tobytes() == theirs[finite].tobytes()
    finally:
        native._settings().grace_emulate_cuda(b"")


@pytest.mark.parametrize("spec", ["topk", "dgc", "threshold", "adaq", "sketch:ratio=0.1"])
def test_a_wrong_index_is_seen_where_no_error_can_be_raised(library, spec):
    compressor, specs = registry.get(spec), [tf.TensorSpec([2500]), tf.TensorSpec([33, 40])]
    ctx = Context(tuple(specs), (0, 1), 0, 0, 1, 0)
    xs = [tf.random.stateless_normal(spec.shape, [1, 2]) for spec in specs]
    payload = compressor.compress_list(xs, ctx)
    right = compressor.decompress_list(payload, ctx.public())
    wrong = {**payload, "indices": tf.fill(payload["indices"].shape, -1)}
    with pytest.raises(tf.errors.InvalidArgumentError):
        compressor.decompress_list(wrong, ctx.public())
    native._settings().grace_emulate_cuda(str(library).encode())
    try:
        with mock.patch.object(arguments, "has_gpus", return_value=True):
            spoilt = compressor.decompress_list(wrong, ctx.public())
            sound = compressor.decompress_list(payload, ctx.public())
    finally:
        native._settings().grace_emulate_cuda(b"")
    for ours, theirs, none in zip(sound, right, spoilt):
        assert ours.numpy().tobytes() == theirs.numpy().tobytes()
        assert np.isnan(none).all()


def test_the_kernels_really_are_the_emulated_ones(tmp_path):
    """Without its library an operation fails, so no test here passes by the CPU's kernels."""
    program = (
        "import tensorflow as tf; from grace_tf.ops import signs;"
        "from grace_tf.ops.backend import native;"
        "native._ops(); native._settings().grace_emulate_cuda(b'/nowhere/at_all.so');"
        "signs.sign_list([tf.zeros([3])], 1.0)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert ended.returncode != 0
    assert "library of the kernels for GPUs could not be opened" in ended.stderr
