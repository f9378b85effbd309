"""How a function of this package takes the place of one of Keras'."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def in_place_of(owner: Any, name: str) -> Callable[[Callable], Callable]:
    """Decorator: puts a function in the place of a method of a class, or a function of a module.

    The function gets what was there before its own arguments: `(original, self, …)`.
    """
    original = getattr(owner, name)

    def put(function: Callable) -> Callable:
        @functools.wraps(original)
        def replaced(*args, **kwargs):
            return function(original, *args, **kwargs)

        replaced.replacement = function  # the doctor reads from it which module has done so
        setattr(owner, name, replaced)
        return replaced

    return put
