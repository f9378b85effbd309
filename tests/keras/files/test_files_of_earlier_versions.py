"""Files that an earlier version has written load, and training goes on from them.

tests/programs/write_files.py has written those in tests/keras/written, with the version 0.1.0.
"""

import json
import os

import numpy as np
import pytest
import write_files
from this_keras import KERAS_3, keras

from grace_tf.keras import aggregator_of
from grace_tf.line.settings import from_config

FOLDER = os.path.join(os.path.dirname(__file__), "written", "keras3" if KERAS_3 else "keras2")


@pytest.fixture(scope="module")
def told():
    with open(os.path.join(FOLDER, "told.json"), encoding="utf-8") as file:
        return json.load(file)


def check(found, wanted):
    for mine, theirs in zip(found, wanted, strict=True):
        # Products of matrices have other last bits on other processors.
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_model_of_an_earlier_version_trains_on_with_its_residuals(told):
    loaded = keras.models.load_model(os.path.join(FOLDER, "model.keras"))
    assert aggregator_of(loaded.optimizer).settings == from_config(json.loads(told["config"]))
    check(write_files.train(loaded, write_files.STEPS), told["model"])


def test_a_checkpoint_of_an_earlier_version_goes_on(told):
    aggregate, variables, checkpoint = write_files.aggregator()
    checkpoint.restore(os.path.join(FOLDER, "aggregator"))
    check(write_files.aggregated(aggregate, variables, write_files.STEPS), told["aggregator"])
