"""Adds to a pickled model the plain classes that its wrapped optimizer needs.

Keras pickles a compiled model as a file, in which a wrapped optimizer has a registered name.  A new
process knows these names only after the import of grace_tf, and the name of a user's class only
after that class was wrapped.  So the pickle lists the plain classes, and loading wraps them first.
"""

from __future__ import annotations

import sys

from grace_tf.keras.classes import made_with, plain_classes
from grace_tf.keras.flavours import Flavour
from grace_tf.keras.replacing import in_place_of
from grace_tf.line import settings


def install(keras: Flavour) -> None:
    """Wraps the pickling of a Keras' Model, and lets older pickles find their classes."""
    # The name in pickles of wrapped optimizers that were made when `Settings` had another place.
    sys.modules.setdefault("grace_tf.settings", settings)

    @in_place_of(keras.module.Model, "__reduce__")
    def reduce(original, self):
        how, arguments, *rest = original(self)
        classes = plain_classes(getattr(self, "optimizer", None))
        if classes:
            how, arguments = made_with, (classes, how, arguments)
        return (how, arguments, *rest)
