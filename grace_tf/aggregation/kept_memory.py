"""Memory that a step frees stays with the process, for the next step.

By default glibc returns large pieces of memory to the operating system as soon as they are free. In
the next step the system fills new pages with zeros, which can take a third of a step's time.
"""

from __future__ import annotations

import ctypes
import functools
import os

import tensorflow as tf

# (the variable by which a user chooses, the number of the parameter in malloc.h, bytes)
_PARAMETERS = (
    ("MALLOC_TRIM_THRESHOLD_", -1, 1 << 30),
    ("MALLOC_TOP_PAD_", -2, 64 << 20),
    ("MALLOC_MMAP_THRESHOLD_", -3, 32 << 20),  # glibc takes no larger value
)


@functools.cache
def keep() -> bool:
    """Tells glibc to keep freed memory, and returns whether glibc accepted all values.

    Only the first call in a process does so; each later call returns the first one's result.
    Nothing is changed where one of glibc's variables has a value, which is the user's choice, or
    where the C library is another one.
    """
    names = [name for name, _, _ in _PARAMETERS]
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(map(os.environ.get, names)):
        return False
    return _tell()


@functools.cache
def keep_beside_generators() -> bool:
    """`keep`, also where a data set comes from a Python generator; TensorFlow must have begun.

    TensorFlow lets glibc return every piece of 128 KiB and more where the first such data set of a
    process is made, because of memory that grew with Python 3.11 (tensorflow/tensorflow#65675).
    With the values of `keep` it grows by less than a quarter and then no more.  TensorFlow does
    this once, so here it makes such a data set first, which takes 10 ms.
    """
    if not keep():
        return False
    with tf.init_scope():
        if tf.executing_eagerly():
            _make_a_generator()
    return _tell()


def _make_a_generator() -> None:
    """Makes what TensorFlow's `from_generator` makes, and draws nothing from it."""
    nothing = tf.function(lambda: tf.zeros([], tf.int32), autograph=False).get_concrete_function()
    functions = {f"{name}_func": nothing for name in ("init", "next", "finalize")}
    inputs = {f"{name}_other_args": [] for name in functions}
    with tf.device("CPU:0"):
        tf.raw_ops.GeneratorDataset(
            **functions, **inputs, output_types=[tf.int32], output_shapes=[[]]
        )


def _tell() -> bool:
    mallopt = _mallopt()
    return mallopt is not None and all([mallopt(number, size) for _, number, size in _PARAMETERS])


def _mallopt():
    return getattr(ctypes.CDLL(None), "mallopt", None)
