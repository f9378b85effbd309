"""Describes the machine of a measurement, and times a call."""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from grace_tf.core.version import __version__
from grace_tf.ops.backend import native

_READS = {"native": "all_finite", "reference": "tf.reduce_max"}


def machine(workers: int, repeats: int, gradient: str) -> dict[str, Any]:
    """The header of a run: the machine, the versions and the gradient."""
    return {
        "kind": "machine",
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "isa": native.isa() if native.available() else None,
        "operations": default_operations(),
        "read": _READS[default_operations()],
        "gradient": gradient,
        "workers": workers,
        "repeats": repeats,
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "grace_tf": __version__,
        "date": datetime.date.today().isoformat(),
    }


def seconds(function: Callable[[], Any]) -> float:
    """The seconds that one call takes, with all the work that it starts."""
    tf.test.experimental.sync_devices()
    began = time.perf_counter()
    function()
    tf.test.experimental.sync_devices()
    return time.perf_counter() - began


def default_operations() -> str:
    """The operations that run here: native or reference."""
    return "native" if native.available() else "reference"


def _cpu_model() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
