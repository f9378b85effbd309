"""`keras`, the Keras of this run of the tests: the package that `tf.keras` means.

It is `keras`, or `tf_keras` where TF_USE_LEGACY_KERAS=1.  The tests, and the programs that they
start, import it from here.
"""

import importlib.util

import tensorflow as tf

keras = importlib.import_module(tf.keras.Model.__module__.partition(".")[0])
# tensorflow-addons needs TensorFlow 2.15 and the Keras 2 that comes with it.
HAS_ADDONS = keras.__name__ == "keras" and importlib.util.find_spec("tensorflow_addons") is not None
KERAS_3 = keras.__version__.startswith("3.")
