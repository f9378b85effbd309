"""Memory that the processes of one host share, and the collectives through it.

`transports/shared_memory.py` makes such a memory with the other processes; `Segment` is this
process's side of it.  The operations run on the CPU only and wait without holding a thread.
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

FIRST_PAGE = 4096  # bytes at the memory's beginning that are the processes' own
MOST_PLACES = 60


def size(places: int) -> int:
    """Bytes of the memory of so many processes.

    Raises RuntimeError, with what this process lacks, where it cannot use one.
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
    """The memory behind a file, mapped as that of process `place` of `places` on this host.

    The file is new, has `size(places)` bytes, and all of them are zeros but for the first page.
    Raises OSError where it cannot be mapped.
    """

    def __init__(self, file: int, place: int, places: int) -> None:
        self.place, self.places = place, places
        self._number = _library().grace_host_map(file, place, places)
        if self._number < 0:
            raise OSError(-self._number, os.strerror(-self._number))

    def serve(self) -> None:
        """Starts the thread that runs the collectives; once, when all processes have a segment."""
        serve = functools.partial(_library().grace_host_serve, self._number)
        threading.Thread(target=serve, name="grace_tf host", daemon=True).start()

    def stop(self) -> None:
        """Ends the collectives of all processes that share the memory, with UnavailableError."""
        _library().grace_host_stop(self._number)

    def sum(
        self, xs: Sequence[tf.Tensor], mark: tf.Variable, key: int, narrow: bool, seconds: float
    ) -> list[tf.Tensor]:
        """The sums of tensors of one dtype over the processes of the host, in their order.

        Numbers of 16 bits, and float32 where `narrow`, which then travels as bfloat16, are added
        up in float32 and rounded once.  `key` and `seconds` (0: no timeout) are those of a
        `Transport`; uses of one `mark` follow each other.
        """
        sums = _between_processes().grace_host_sum(
            xs=list(xs), mark=mark.handle, narrow=narrow, **self._call(key, seconds)
        )
        return shaped_like(sums, [x.shape for x in xs])

    def join(
        self, x: tf.Tensor, lengths: Sequence[int], mark: tf.Variable, key: int, seconds: float
    ) -> tf.Tensor:
        """Everyone's columns side by side: `[rows, lengths[place]]` to `[rows, sum(lengths)]`."""
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
    """The operations of the native library that have no reference: they compute nothing alone."""
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
