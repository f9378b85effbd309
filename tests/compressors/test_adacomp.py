"""Of each bin the elements that the last gradient made large, as ±S."""

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.core import registry
from grace_tf.core.specs import spec_of
from grace_tf.testing import Workers


def test_a_known_vector():
    x = np.array([4, 1, -2, 0, 1, 1, 0, -8], np.float32)
    workers = Workers(1, "adacomp:bin=4,room=4")
    # |2x| reaches the bin's largest |x| at 4 and −2, and at −8; S = (4 + 8)/2.
    np.testing.assert_array_equal(workers([[x]])[0][0], [6, 0, -6, 0, 0, 0, 0, -6])
    rest = workers.state.arrays()["0/memory/residual"][0]
    np.testing.assert_array_equal(rest, [-2, 1, 4, 0, 1, 1, 0, -2])
    # G = [2, 2, 2, 0 | 2, 2, 0, −10] and H = [6, 3, 0, 0 | 3, 3, 0, −18]; S = (2 + 10)/2.
    np.testing.assert_array_equal(workers([[x]])[0][0], [6, 6, 0, 0, 0, 0, 0, -6])


def test_what_finds_no_room_waits():
    x = np.ones(1000, np.float32)  # all of a bin are its largest
    workers = Workers(1, "adacomp:bin=100,room=3")
    sent = workers([[x]])[0][0].numpy()
    assert np.count_nonzero(sent) == 30 and set(sent) == {0.0, 1.0}
    np.testing.assert_array_equal(workers.state.arrays()["0/memory/residual"][0], x - sent)


def test_the_name_resolves_to_adaq_and_the_memory():
    for given, method, memory in (
        ("adacomp", "adaq:ratio=0.016", "adacomp"),
        ("adacomp:bin=50", "adaq:ratio=0.16", "adacomp:bin=50"),
        ("adacomp:bin=50,room=50", "adaq:ratio=1.0", "adacomp:bin=50"),
    ):
        compressor, owner = registry.resolve(given)
        assert (str(compressor), spec_of(owner)) == (method, memory)


def test_the_bytes_are_those_of_adaq():
    spec = tf.TensorSpec([10**6], tf.float32)
    assert grace_tf.get("adacomp").nbytes(spec) == 17_920
    assert grace_tf.get("adaq:ratio=0.016").nbytes(spec) == 17_920


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("bin=0", "bin is at least 1"),
        ("room=0", "room is from 1 to 500"),
        ("bin=7", "room is from 1 to 7, not 8"),
    ],
)
def test_what_is_wrong_is_refused(wrong, words):
    with pytest.raises(ValueError, match=f"adacomp: {words}"):
        grace_tf.get(f"adacomp:{wrong}")
