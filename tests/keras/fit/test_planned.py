"""The number of steps that a call of `fit` plans, from which "auto" sees whether timing pays."""

import numpy as np
import pytest
import tensorflow as tf

from grace_tf.keras.training import _planned

ROWS = np.zeros([100, 2])


@pytest.mark.parametrize(
    "given, steps",
    [
        ({"x": ROWS}, 4),
        ({"x": ROWS, "batch_size": 10, "epochs": 3}, 30),
        ({"x": ROWS, "batch_size": 10, "epochs": 3, "initial_epoch": 2}, 10),
        ({"x": ROWS, "steps_per_epoch": 7, "epochs": 2}, 14),
        ({"x": tf.data.Dataset.from_tensor_slices(ROWS).batch(8), "epochs": 2}, 26),
        ({"x": tf.data.Dataset.from_tensor_slices(ROWS).repeat()}, None),
        ({"x": iter([ROWS])}, None),
    ],
)
def test_the_steps_of_all_epochs_are_counted_where_they_are_known(given, steps):
    assert _planned(given) == steps
