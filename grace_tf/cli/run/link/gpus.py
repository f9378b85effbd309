"""Gives each worker behind an emulated link one GPU, as if it were on a host of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_GPUS = Path("/proc/driver/nvidia/gpus")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def one_gpu(worker: int, environment: Mapping[str, str], gpus: Path = _GPUS) -> dict[str, str]:
    """The variable that shows a worker one of this machine's GPUs, in turn; {} without any.

    TensorFlow takes the first GPU of a host, and each of these workers has a host of its own.
    """
    if _VISIBLE in environment:
        shown = [each.strip() for each in environment[_VISIBLE].split(",") if each.strip()]
    else:
        shown = [str(i) for i, _ in enumerate(gpus.iterdir())] if gpus.is_dir() else []
    return {_VISIBLE: shown[worker % len(shown)]} if len(shown) > 1 else {}
