"""Writes scalars and histograms for TensorBoard, also where TensorBoard is not installed.

TensorFlow's own `tf.summary.scalar` needs TensorBoard's package.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import summary_pb2

_BUCKETS = 30


def write(
    writer: Any, step: int, scalars: Mapping[str, float], tensors: Iterable[tuple[str, Any]]
) -> None:
    """Writes numbers, but not NaN, and the histograms of tensors at this step."""
    with writer.as_default():
        for name, value in scalars.items():
            if not math.isnan(value):
                tf.summary.write(name, np.float32(value), step, _metadata("scalars"))
        for name, tensor in tensors:
            tf.summary.write(name, _histogram(np.asarray(tensor)), step, _metadata("histograms"))
    writer.flush()


def _metadata(plugin: str) -> summary_pb2.SummaryMetadata:
    made = summary_pb2.SummaryMetadata()
    made.plugin_data.plugin_name = plugin
    scalar = plugin == "scalars"
    made.data_class = summary_pb2.DATA_CLASS_SCALAR if scalar else summary_pb2.DATA_CLASS_TENSOR
    return made


def _histogram(values: np.ndarray) -> np.ndarray:
    """float64 [buckets, 3]: left edge, right edge and count of each, as TensorBoard wants it."""
    counts, edges = np.histogram(values[np.isfinite(values)], _BUCKETS)
    return np.stack([edges[:-1], edges[1:], counts], 1).astype(np.float64)
