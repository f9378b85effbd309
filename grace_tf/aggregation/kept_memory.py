"""Memory that a step frees stays with the process, for the next step.

By default glibc returns large pieces of memory to the operating system as soon as they are free. In
the next step the system fills new pages with zeros, which can take a third of a step's time.
"""

from __future__ import annotations

import ctypes
import functools
import os

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
    mallopt = _mallopt()
    return mallopt is not None and all([mallopt(number, size) for _, number, size in _PARAMETERS])


def _mallopt():
    return getattr(ctypes.CDLL(None), "mallopt", None)
