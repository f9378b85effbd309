"""What a pickled model takes along: the classes that its wrapped optimizer needs.

Keras packs a compiled model as a file, in which a wrapped optimizer has a registered name.  A fresh
process knows such names only after grace_tf has been imported, and that of a user's own class only
after it has been wrapped; so the pickle names the plain classes, and they are wrapped before.
"""

from __future__ import annotations

import sys

import keras

from grace_tf.keras.classes import made_with, plain_classes
from grace_tf.keras.replacing import in_place_of
from grace_tf.line import settings


def install() -> None:
    """Puts this around the pickling of `keras.Model`, and lets older pickles find their classes."""
    # The name in pickles of wrapped optimizers that were made when `Settings` had another place.
    sys.modules.setdefault("grace_tf.settings", settings)

    @in_place_of(keras.Model, "__reduce__")
    def reduce(own, self):
        how, arguments, *rest = own(self)
        classes = plain_classes(getattr(self, "optimizer", None))
        if classes:
            how, arguments = made_with, (classes, how, arguments)
        return (how, arguments, *rest)
