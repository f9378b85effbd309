"""Shared by TensorFlow's and Horovod's collectives: dtypes, the refusal of XLA, marks for order."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from grace_tf.transports.lifeline import waits

# dtype of a buffer -> the dtype that collectives can move bit for bit.
_MOVED = {name: name for name in ("float16", "float32", "float64", "int32", "int64")}
_MOVED.update(bfloat16="float16", uint16="float16", int16="float16", uint32="int32", uint64="int64")


def moved(
    buffer: tf.Tensor, move: Callable[[tf.Tensor], tf.Tensor], device: str | None = "/CPU:0"
) -> tf.Tensor:
    """`move(buffer)`, bit for bit: moves the buffer as a dtype that collectives can move."""
    if buffer.dtype.name not in _MOVED:
        raise TypeError(f"{buffer.dtype.name} cannot be sent; there are {', '.join(_MOVED)}.")
    carrier = tf.as_dtype(_MOVED[buffer.dtype.name])
    with tf.device(device):
        return tf.bitcast(move(tf.bitcast(buffer, carrier)), buffer.dtype)


def refuse_xla() -> None:
    """Raises RuntimeError inside a function that XLA compiles."""
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise RuntimeError(
            "XLA cannot compile collectives between processes: compile the model with "
            "jit_compile=False, and tf.function without jit_compile."
        )


class Marks:
    """One variable for each key: it orders its uses and counts them, see lifeline/waits.py.

    `of_all`: whether all workers take part in these collectives, so that a key tells their place.
    """

    def __init__(self, of_all: bool = True) -> None:
        self._marks: dict[int, tf.Variable] = {}
        self._of_all = of_all

    def __getitem__(self, key: int) -> tf.Variable:
        if key not in self._marks:
            with tf.init_scope(), tf.device("/CPU:0"):
                zero = tf.zeros([], tf.float64)
                mark = ResourceVariable(zero, trainable=False, name="grace_tf_order")
                if self._of_all:
                    setattr(mark, waits.KEY, key)
                self._marks[key] = mark
        return self._marks[key]
