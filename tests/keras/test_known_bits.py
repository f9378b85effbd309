"""A training on known gradients ends with the same bits under every TensorFlow and Keras.

Methods with matrix products are left out, since processors round these otherwise.  Other engines
have the cell "fit" of test_cells.py.  In tests/, `PYTHONPATH=support:programs python
keras/test_known_bits.py` writes the bits anew.
"""

import json
import pathlib

import pytest
from cell_engine import Engine
from cell_features import trained_on_known_gradients
from digests import digest
from models import on_replica
from replicas import mirrored
from this_keras import keras

import grace_tf

KNOWN = pathlib.Path(__file__).parents[1] / "support" / "known_ends.json"
PRODUCTS = "powersgd", "acpsgd", "gradzip"  # of matrices
METHODS = [name for name in grace_tf.available() if name not in ("auto", *PRODUCTS)]


def ends():
    """The digest of each method's variable after the training, the same on both replicas."""

    def sgd():
        return grace_tf.wrap(
            keras.optimizers.SGD(0.5),
            {f".*{name}/.*": name for name in METHODS},
            min_elements=1,
            seed=4,
        )

    made = trained_on_known_gradients(Engine(mirrored(2), 0, 2), sgd, METHODS)
    found = {}
    for name, variable in zip(METHODS, made.trainable_variables, strict=True):
        (found[name],) = {digest(on_replica([variable], replica)) for replica in range(2)}
    return found


@pytest.mark.rotated
@pytest.mark.slow
def test_every_method_ends_with_the_bits_that_all_versions_have():
    known = json.loads(KNOWN.read_text())
    assert ends() == known
    assert len(set(known.values())) > len(METHODS) / 2


if __name__ == "__main__":
    KNOWN.write_text(json.dumps(ends(), indent=1) + "\n")
