"""Says in a few words why a variable travels as it does, from the settings and its lane."""

from __future__ import annotations

import re

import tensorflow as tf

from grace_tf.line.lanes import Lane
from grace_tf.line.settings import ANY, DENSE, Settings


def reason(settings: Settings, path: str, lane: Lane, choice: str = "") -> str:
    """Why the variable at this path has its lane: a pattern, `min_elements`, `exclude` and so on.

    Args:
      settings: of one stage, those from which the lane was made (`lanes.lane_of`).
      path: of the variable; `:0` is ignored.
      choice: why "auto" has chosen the method of this stage.
    """
    path, elements = path.removesuffix(":0"), tf.TensorShape(lane.shape).num_elements()
    if not tf.as_dtype(lane.dtype).is_floating:
        why = f"{lane.dtype} is no float"
    elif elements < max(settings.min_elements, 1):
        why = f"{elements} elements, fewer than min_elements={settings.min_elements}"
    else:
        why = _routed(settings, path, lane)
        if choice and settings.chooses(path):
            why += f"; {choice}"
    if lane.claimed:
        why += f"; the memory {lane.memory.name} also serves uncompressed variables"
    elif lane.compressor == DENSE[0] and lane.memory != DENSE[1]:
        why += f"; the memory {lane.memory.name} still holds what another stage has not sent"
    return why


def _routed(settings: Settings, path: str, lane: Lane) -> str:
    for pattern in settings.exclude:
        if re.fullmatch(pattern, path):
            return f"exclude={pattern!r}"
    for pattern, compressor, _ in settings.routes:
        if not re.fullmatch(pattern, path):
            continue
        where = "every variable" if pattern == ANY else f"pattern {pattern!r}"
        if compressor != DENSE[0] and lane.compressor == DENSE[0]:
            shape = "×".join(map(str, lane.shape))
            if not compressor.wants(tf.TensorSpec(lane.shape, tf.float32)):
                return f"{where}, but {compressor.name} does not compress the shape {shape}"
            if compressor.row_share is not None and settings.chooses(path):
                return f"{where}, but auto compresses rows with quantisers only"
            return f"{where}, but {compressor.name} does not compress rows by themselves"
        return where
    return "no pattern matches"
