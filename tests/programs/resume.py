"""Loads saved models in a fresh process, trains on: `resume.py 'replicas:path' …`, a line of JSON.

Only grace_tf and Keras are imported: the files must need no more.
"""

import json
import os
import pathlib
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

import models
from replicas import mirrored  # four virtual CPUs
from this_keras import keras

import grace_tf  # noqa: F401

found = []
for argument in sys.argv[1:]:
    replicas, _, path = argument.partition(":")
    strategy = None if replicas == "1" else mirrored(int(replicas))
    with models.scope(strategy):
        made = keras.models.load_model(path)
    models.fit(made, 3, seed=1)
    optimizer = getattr(made.optimizer, "inner_optimizer", made.optimizer)
    found.append([type(optimizer).__name__, *models.shas(made, strategy)])
print(json.dumps(found))
