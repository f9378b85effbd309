"""Memory of one step serves the next, unless the user says otherwise."""

import os
import resource
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import grace_tf
from grace_tf.aggregation import kept_memory

NAMES = [name for name, _, _ in kept_memory._PARAMETERS]
VARIABLES = [*NAMES, "GLIBC_TUNABLES"]


def new_pages():
    """Makes 80 arrays of 1 MB, and returns how many new pages the system gave for them."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.full(1 << 20, 1, np.uint8) for _ in range(80)]
    del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(kept_memory._mallopt() is None, reason="the C library is not glibc")
@pytest.mark.skipif(any(map(os.environ.get, VARIABLES)), reason="the user has chosen")
def test_memory_is_kept_also_after_a_data_set_of_a_python_generator():
    assert kept_memory.keep_beside_generators()
    made = tf.data.Dataset.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec([]))
    assert len([*made]) == 1
    for _ in range(3):
        last = new_pages()
    assert last < 1000  # of 20480


def test_an_aggregator_keeps_memory_and_its_step_also_beside_generators():
    with mock.patch.object(kept_memory, "keep") as keep:
        aggregator = grace_tf.Aggregator("none")
    keep.assert_called_once_with()
    with mock.patch.object(kept_memory, "keep_beside_generators") as beside:
        aggregator([tf.ones([3])], [tf.Variable(tf.ones([3]))])
    beside.assert_called_once_with()


@pytest.mark.parametrize("name", VARIABLES)
def test_what_a_user_has_chosen_stays(name):
    chosen = {**dict.fromkeys(VARIABLES, ""), name: "glibc.malloc.trim_threshold=1"}
    called = mock.Mock(return_value=1)
    with mock.patch.dict(os.environ, chosen):
        with mock.patch.object(kept_memory, "_mallopt", lambda: called):
            assert not kept_memory.keep.__wrapped__()
    assert not called.called


def test_another_c_library_is_left_alone():
    with mock.patch.dict(os.environ, dict.fromkeys(VARIABLES, "")):
        with mock.patch.object(kept_memory, "_mallopt", lambda: None):
            assert not kept_memory.keep.__wrapped__()
