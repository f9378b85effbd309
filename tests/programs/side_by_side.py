"""Models of Keras 3 and of tf_keras in one process: both train, are saved, load and train on.

side_by_side.py FOLDER PACKAGE…: grace_tf and the two packages are imported in this order.  Prints
one line of JSON: for each package what its training found.
"""

import importlib
import json
import os
import sys

import numpy as np

folder, *order = sys.argv[1:]
modules = {name: importlib.import_module(name) for name in order}
grace_tf = modules.pop("grace_tf")


def model(keras):
    """A model of this Keras with a wrapped Adam."""
    first, second = (keras.initializers.GlorotUniform(seed=seed) for seed in (1, 2))
    layers = (
        keras.layers.Dense(16, "tanh", kernel_initializer=first),
        keras.layers.Dense(4, kernel_initializer=second),
    )
    made = keras.Sequential([keras.Input((8,)), *layers])
    wrapped = grace_tf.wrap(keras.optimizers.Adam(0.01), "topk:ratio=0.1", min_elements=1)
    made.compile(wrapped, "mse")
    return made


def train(keras, made):
    """The loss of each of two epochs."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=[64, 8]).astype(np.float32)
    y = np.tanh(x @ draw.normal(size=[8, 4])).astype(np.float32)
    how = dict(batch_size=16, epochs=2, shuffle=False, verbose=0)
    return made.fit(x, y, callbacks=[grace_tf.keras.Callback(keras=keras)], **how).history["loss"]


made = {name: model(keras) for name, keras in modules.items()}
told = {name: {"losses": train(modules[name], each)} for name, each in made.items()}
files = {name: os.path.join(folder, f"{name}.keras") for name in made}
for name, each in made.items():
    each.save(files[name])
for name, keras in modules.items():
    loaded = keras.models.load_model(files[name])
    told[name]["class"] = type(loaded.optimizer).__name__
    told[name]["is its Keras'"] = isinstance(loaded.optimizer, keras.optimizers.Optimizer)
    on, after_file = train(keras, made[name]), train(keras, loaded)
    told[name]["goes on"] = on == after_file
    pairs = zip(made[name].get_weights(), loaded.get_weights())
    told[name]["same weights"] = all((one == other).all() for one, other in pairs)
    bits = grace_tf.keras.OneBitAdam(0.01, freeze_step=4, keras=keras)
    made[name].compile(bits, "mse")
    told[name]["one bit"] = train(keras, made[name])
    (other,) = set(modules.values()) - {keras}
    try:
        train(other, made[name])
    except TypeError as error:
        told[name]["other callback"] = str(error)
print(json.dumps(told))
