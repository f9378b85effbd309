"""Elements of accumulated gradients that are large beside their variance."""

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.core import registry
from grace_tf.core.specs import spec_of
from grace_tf.testing import Workers


def test_a_known_vector():
    workers = Workers(1, "variance:capacity=1.0")
    x = np.float32([1, 2, 3, 4])
    np.testing.assert_array_equal(workers([[x]])[0][0], [0, 0, 0, 0])  # r² = v
    # r² = 4x² above 1.5·1.999·x², or 0.
    signs = np.float32([1, -1, 1, -1])
    np.testing.assert_array_equal(workers([[signs * x]])[0][0], [2, 0, 6, 0])
    arrays = workers.state.arrays()
    np.testing.assert_array_equal(arrays["0/memory/r"][0], [0, 0, 0, 0])
    np.testing.assert_allclose(
        arrays["0/memory/v"][0], [0, 4 * 0.999 * 1.999, 0, 16 * 0.999 * 1.999], rtol=1e-6
    )


def test_the_largest_of_those_that_stand_out_go_and_the_others_wait():
    workers = Workers(1, "variance:capacity=0.1")
    x = np.arange(1, 101, dtype=np.float32)
    workers([[x]])
    sent = workers([[x]])[0][0].numpy()
    np.testing.assert_array_equal(sent, np.where(x > 90, 2 * x, 0))
    np.testing.assert_array_equal(workers.state.arrays()["0/memory/r"][0], 2 * x - sent)


def test_the_name_resolves_to_threshold_and_the_memory_of_this_name():
    compressor, memory = registry.resolve("variance:alpha=2.0,decay=0.99,capacity=0.25")
    assert str(compressor) == "threshold:threshold=0.0,capacity=0.25"
    assert spec_of(memory) == "variance:alpha=2.0,decay=0.99"
    assert spec_of(registry.get_memory("variance")) == "variance"


def test_the_bytes_are_those_of_threshold():
    spec = tf.TensorSpec([10**6], tf.float32)
    assert grace_tf.get("variance").nbytes(spec) == grace_tf.get("threshold").nbytes(spec)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("alpha=0.5", "alpha is at least 1"),
        ("decay=0.0", "decay"),
        ("decay=1.5", "decay"),
        ("capacity=0.0", "capacity"),
    ],
)
def test_what_is_wrong_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        grace_tf.get(f"variance:{wrong}")
