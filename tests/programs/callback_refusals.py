"""Two workers of a group whose logs differ in more than values; prints a line of JSON."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

import grace_tf  # noqa: E402

group = grace_tf.init(timeout=60)

import models  # noqa: E402
from this_keras import keras  # noqa: E402


def raised(made, **keywords):
    """What a fit raises, None if nothing."""
    try:
        models.fit(made, 1, **keywords)
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def sgd(**keywords):
    return grace_tf.wrap(keras.optimizers.SGD(0.1), "fp16", min_elements=1, **keywords)


def unbuilt():
    keras.utils.set_random_seed(group.rank)
    return keras.Sequential([keras.layers.Dense(4)], name="bare")


def trained(made):
    """The digest of an unbuilt model's weights after a fit with the callback of root 1."""
    models.fit(made, 1, callbacks=[grace_tf.keras.Callback(root=1)])
    return models.sha(made)


one = models.data() if group.rank == 0 else None  # validation data on worker 0 alone
told = {
    "same": raised(models.compiled(sgd), validation_data=models.data()),
    "one validates": raised(models.compiled(sgd), validation_data=one),
    "turned off": raised(models.compiled(lambda: sgd(average_logs=False)), validation_data=one),
    "unbuilt": trained(models.compiled(sgd, make=unbuilt)),
}
print(json.dumps(told), flush=True)
