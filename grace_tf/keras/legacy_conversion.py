"""Lets Keras 2 convert a wrapped optimizer to its legacy class.  The result is wrapped as well.

Keras looks for a legacy class of the same name and passes it the optimizer's config.  It knows
neither the name of a wrapped class nor the settings in its config.
"""

from __future__ import annotations

import sys

from grace_tf.keras.classes import Wrapped, attach, wearing_plain_class
from grace_tf.keras.flavours import Flavour
from grace_tf.keras.replacing import in_place_of


def install(keras: Flavour) -> None:
    """Wraps `convert_to_legacy_optimizer` of a Keras 2; Keras 3 has none."""
    if keras.is_3:
        return
    # Keras itself calls the function of the private module, and users call the public one.
    private, public = sys.modules[f"{keras.package}.src.optimizers"], keras.module.__internal__

    @in_place_of(private, "convert_to_legacy_optimizer")
    def convert(original, optimizer):
        if not isinstance(optimizer, Wrapped):
            return original(optimizer)
        wanted = optimizer._settings()
        with wearing_plain_class(optimizer):
            made = original(optimizer)
        attach(made, wanted)
        return made

    public.optimizers.convert_to_legacy_optimizer = private.convert_to_legacy_optimizer
