"""Lists the objects in which a compressor could hide state between calls."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from grace_tf.core.compressor import Compressor


def belongings(stages: Sequence[Compressor]) -> dict[str, list]:
    """Where a compressor could hide state: attributes, class attributes, globals that it uses."""
    kept = {}
    for c in stages:
        owner = type(c)
        kept.update({f"self.{name}": _contents(value) for name, value in vars(c).items()})
        for name, value in vars(owner).items():
            if isinstance(value, (list, dict, set)) and not name.startswith("__"):
                kept[f"{owner.__name__}.{name}"] = _contents(value)
            value = inspect.unwrap(value) if callable(value) else value
            code = getattr(value, "__code__", None)
            for used in code.co_names if code else ():
                found = value.__globals__.get(used)
                if isinstance(found, (list, dict, set, tf.Variable)):
                    kept[f"the global {used}"] = _contents(found)
    return kept


def _contents(value: Any) -> list:
    if isinstance(value, (tf.Variable, np.ndarray)):
        return [np.array(value).tobytes()]
    if isinstance(value, dict):
        return [*value, *value.values()]
    return list(value) if isinstance(value, (list, set)) else [value]


def unchanged(before: list, after: list) -> bool:
    """Whether these are the same objects; the lists keep them alive, so none takes another's id."""
    return len(before) == len(after) and all(
        a is b or (isinstance(a, bytes) and a == b) for a, b in zip(before, after)
    )
