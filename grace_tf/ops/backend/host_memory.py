"""Memory that the processes of one host share, and the collectives that run through it.

`transports/meeting_in_memory.py` creates the memory together with the other processes.  `Segment`
is the view that this process has of it.  The operations run on the CPU only.  While an operation
waits for other processes, it occupies no thread of TensorFlow.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
from collections.abc import Sequence
from types import ModuleType

import tensorflow as tf

from grace_tf.ops.backend import native
from grace_tf.ops.backend.outputs import shaped_like

MOST_PLACES = 60  # processes of one host that can share a memory


def size(places: int) -> int:
    """The size in bytes of the memory that `places` processes share.

    Raises RuntimeError if this process cannot use shared memory; the message names what is missing.
    """
    if not native.available():
        raise RuntimeError("has no native library")
    if not hasattr(_between_processes(), "grace_host_sum"):
        raise RuntimeError("has a native library of another version of the package")
    if places > MOST_PLACES:
        raise RuntimeError(f"shares its host with {places - 1} others, {MOST_PLACES - 1} at most")
    bytes_ = _library().grace_host_bytes(places)
    if not bytes_ or not hasattr(os, "memfd_create"):
        raise RuntimeError(f"runs TensorFlow {tf.__version__} on {sys.platform}")
    return bytes_


class Segment:
    """The shared memory as process number `place` of the `places` processes of this host maps it.

    `file` is the descriptor of a new file of `size(places)` bytes.  It contains only zeros, except
    in its first 4096 bytes.  Raises OSError if the file cannot be mapped.
    """

    def __init__(self, file: int, place: int, places: int) -> None:
        self.place, self.places = place, places
        self._number = _library().grace_host_map(file, place, places)
        if self._number < 0:
            raise OSError(-self._number, os.strerror(-self._number))

    def serve(self) -> None:
        """Starts the thread that runs the collectives.

        Each process calls it once, after all processes of the host have made their `Segment`.
        """
        serve = functools.partial(_library().grace_host_serve, self._number)
        threading.Thread(target=serve, name="grace_tf host", daemon=True).start()

    def stop(self) -> None:
        """Ends the collectives of all processes that share the memory, with UnavailableError."""
        _library().grace_host_stop(self._number)

    def sum(
        self, xs: Sequence[tf.Tensor], mark: tf.Variable, key: int, narrow: bool, seconds: float
    ) -> list[tf.Tensor]:
        """For each tensor, its sum over the processes of the host, added in the order of `place`.

        All tensors have the same dtype.  16-bit numbers are added in float32, and the sum is
        rounded once.  With `narrow` the same is done for float32 tensors, which are copied as
        bfloat16.  `key` and `seconds` (0: no timeout) mean the same as in `Transport`.
        Collectives with the same `mark` run one after the other.
        """
        sums = _between_processes().grace_host_sum(
            xs=list(xs), mark=mark.handle, narrow=narrow, **self._call(key, seconds)
        )
        return shaped_like(sums, [x.shape for x in xs])

    def join(
        self, x: tf.Tensor, lengths: Sequence[int], mark: tf.Variable, key: int, seconds: float
    ) -> tf.Tensor:
        """The columns of all processes side by side, in the order of `place`.

        The input has the shape `[rows, lengths[place]]`, the result `[rows, sum(lengths)]`.
        """
        whole = _between_processes().grace_host_join(
            x=x,
            mark=mark.handle,
            rows=x.shape[0],
            place=self.place,
            lengths=list(lengths),
            **self._call(key, seconds),
        )
        return shaped_like([whole], [[x.shape[0], sum(lengths)]])[0]

    def _call(self, key: int, seconds: float) -> dict:
        return {"segment": self._number, "key": key, "seconds": float(seconds)}


def _between_processes() -> ModuleType:
    """The native operations.

    Those of this module have no reference, because one process alone has nothing to compute.
    """
    return native._ops()


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(native.LIBRARY))
    library.grace_host_bytes.restype = ctypes.c_int64
    library.grace_host_map.restype = ctypes.c_int64
    for name in ("grace_host_serve", "grace_host_stop"):
        getattr(library, name).argtypes = [ctypes.c_int64]
        getattr(library, name).restype = None
    return library
