"""To which Keras an optimizer, a model or a layer belongs.

A process may use two packages: `keras`, which is Keras 3 (with TensorFlow 2.15: Keras 2), and
`tf_keras`, which is Keras 2 for TensorFlow 2.16 and later.  grace_tf imports neither by itself.  It
makes its changes to a Keras when that Keras is imported, and its subclasses of Keras' classes once
for each Keras.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import tensorflow as tf
import wrapt

PACKAGES = ("keras", "tf_keras")


@dataclasses.dataclass(frozen=True)
class Flavour:
    """One of the Keras packages that this process has imported, and its generation."""

    package: str  # its name, "keras" or "tf_keras"
    is_3: bool  # whether it is Keras 3, else Keras 2

    @property
    def module(self) -> ModuleType:
        return sys.modules[self.package]

    def has(self, thing: Any, name: str) -> bool:
        """Whether `thing` is an instance of a class of this Keras, named as in "metrics.Metric"."""
        return isinstance(thing, operator.attrgetter(name)(self.module))


def flavour_of(thing: Any) -> Flavour | None:
    """The Keras to which a class or an object belongs; None if it derives from no class of Keras.

    The first base class that a Keras defines decides.
    """
    bases = thing.__mro__ if isinstance(thing, type) else type(thing).__mro__
    packages = (package_of(base) for base in bases)
    return next((_flavour(package) for package in packages if package in PACKAGES), None)


def package_of(cls: type) -> str:
    """The name of the package in which a class is defined."""
    return str(cls.__module__).partition(".")[0]


def is_a(thing: Any, name: str) -> bool:
    """Whether the Keras of `thing` has a class of this name, and `thing` is an instance of it."""
    flavour = flavour_of(thing)
    return flavour is not None and flavour.has(thing, name)


def imported() -> list[Flavour]:
    """Each Keras that this process has imported."""
    # A package that is being imported has no version yet.
    return [_flavour(name) for name in PACKAGES if hasattr(sys.modules.get(name), "__version__")]


def chosen(module: Any = None) -> Flavour:
    """The Flavour of a module, which is `keras` or `tf_keras`.

    Without a module it is that of `tf.keras`, which is `tf_keras` if TF_USE_LEGACY_KERAS=1 is set.
    Raises TypeError for another module.
    """
    model = getattr(tf.keras if module is None else module, "Model", None)
    found = flavour_of(model) if isinstance(model, type) else None
    if found is None:
        raise TypeError(f"keras is the module keras or tf_keras, not {module!r}.")
    return found


def when_imported(install: Callable[[Flavour], None]) -> None:
    """Calls `install` for each Keras: at once if it is imported already, else at its import."""
    for package in PACKAGES:
        wrapt.register_post_import_hook(lambda module: install(_flavour(module.__name__)), package)


@functools.cache
def derived(cls: type, flavour: Flavour, base: str, *between: type) -> type:
    """A subclass of both `cls` and a class of this Keras, named as in "callbacks.Callback"."""
    parent = operator.attrgetter(base)(flavour.module)
    held = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls, *between, parent), {**held, "_underived": cls})


def underived(cls: type) -> type:
    """The class from which `derived` made this class; a class not made by it is returned as it is.

    Pickle finds only the original class by its name.
    """
    return vars(cls).get("_underived", cls)


def callback(cls: type, model: Any, *args: Any) -> Any:
    """Makes a callback of the model's Keras."""
    return derived(cls, flavour_of(model), "callbacks.Callback")(*args)


def _flavour(package: str) -> Flavour:
    version = sys.modules[package].__version__
    return Flavour(package, int(version.partition(".")[0]) >= 3)
