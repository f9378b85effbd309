"""The only loader of the native library, `grace_tf/_ops.so`, and its operations as functions."""

from __future__ import annotations

_absence = "the native library is not built yet."


def available(warn: bool = False) -> bool:
    """Whether the native operations can run."""
    return False


def why_not() -> str:
    """Why they cannot, in one sentence; empty if they can."""
    return _absence
