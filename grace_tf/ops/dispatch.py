"""Chooses for each operation the native implementation or the reference in plain TensorFlow.

Native operations run on the CPU; native operations on lists also run on GPUs. Where XLA compiles,
the reference runs.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from types import ModuleType

import tensorflow as tf
from tensorflow.python.framework import ops as _graphs
from tensorflow.python.ops import control_flow_util

from grace_tf.ops import reference
from grace_tf.ops.backend import cuda, native

_IMPLEMENTATIONS = {"native": native, "reference": reference}
_forced: contextvars.ContextVar[str | None] = contextvars.ContextVar("forced", default=None)


@contextlib.contextmanager
def using(implementation: str) -> Iterator[None]:
    """Forces "native" or "reference" within the context, for tests and comparisons.

    It holds for the thread that enters it, not for threads that start inside it. What is traced
    into a tf.function inside the context keeps the choice. Raises ValueError for
    another name, RuntimeError where the native library is wanted but absent.
    """
    if implementation not in _IMPLEMENTATIONS:
        raise ValueError(
            f"There is no implementation {implementation!r} of the operations; "
            f"there are {' and '.join(sorted(_IMPLEMENTATIONS))}."
        )
    if implementation == "native" and not native.available():
        raise RuntimeError(f"The native operations are not available: {native.why_not()}")
    token = _forced.set(implementation)
    try:
        yield
    finally:
        _forced.reset(token)


def chosen(x: tf.Tensor | None = None) -> ModuleType:
    """Returns the module that runs an operation on x; x is None for operations without a tensor."""
    forced = _forced_or_xla()
    if forced is not None:
        return forced
    if not _on_cpu(x):
        return reference
    return native if native.available(warn=True) else reference


def runs_here(xs: Sequence[tf.Tensor]) -> bool:
    """Whether native operations on lists run on these tensors.

    They do where the library is there, the tensors are on the CPU, or on GPUs and the CUDA kernels
    run there, nothing is compiled by XLA, and `ops.using` does not say otherwise. On a GPU
    TensorFlow itself chooses between an operation's kernels.
    """
    forced = _forced_or_xla()
    if forced is not None:
        return forced is native
    if not all(_on_cpu(x) for x in (*xs, None)) and cuda.why_not(warn=True):
        return False
    return native.available(warn=True)


def runs_on_cpu(xs: Sequence[tf.Tensor]) -> bool:
    """Whether native operations that have no kernel for GPUs run on these tensors."""
    return all(chosen(x) is native for x in (*xs, None))


def made_here(x: tf.Tensor) -> bool:
    """Whether an operation of the native library has made x, in a graph."""
    return not tf.executing_eagerly() and x.op.type.startswith("Grace>")


def _forced_or_xla() -> ModuleType | None:
    forced = _forced.get()
    if forced is not None:
        return _IMPLEMENTATIONS[forced]
    in_xla = control_flow_util.GraphOrParentsInXlaContext(_graphs.get_default_graph())
    return reference if in_xla else None


def _on_cpu(x: tf.Tensor | None) -> bool:
    if x is not None and x.device:
        return "CPU" in x.device.upper()
    # What has no device yet goes where TensorFlow likes best.
    return not tf.config.list_logical_devices("GPU")
