"""Damages the backups of one worker, before it goes on from them."""

from __future__ import annotations

import pathlib
import random
import re
import shutil
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

_WEIGHTS, _RESIDUALS = "weights", "residual"


def folder_of(job: dict[str, Any]) -> pathlib.Path:
    """The backups of the worker with the fault."""
    root = pathlib.Path(job["folder"])
    rank = job["fault"]["worker"]
    return (root / f"rank{rank}" if rank else root) / "backup"


def backups(folder: pathlib.Path) -> list[list[pathlib.Path]]:
    """The files of each complete backup, without its checksums; the newest backup comes last."""
    found: dict[int, list[pathlib.Path]] = {}
    for path in sorted(folder.rglob("*")):
        number = re.search(r"(?:/|ckpt-)(\d+)(?:/|\.)", str(path.relative_to(folder.parent)))
        if path.is_file() and number and "sha256" not in path.name:
            found.setdefault(int(number[1]), []).append(path)
    return [files for _, files in sorted(found.items())]


def places(files: list[pathlib.Path], what: str) -> Iterator[tuple[pathlib.Path, int, int]]:
    """(file, first byte, bytes) of the weights or residuals of a backup."""
    for path in files:
        if path.suffix == ".h5":
            with h5py.File(path, "r") as file:
                datasets: list[Any] = []
                file.visititems(
                    lambda _, x, to=datasets: to.append(x) if isinstance(x, h5py.Dataset) else None
                )
                for data in datasets:
                    residual = _RESIDUALS in data.name
                    is_weight = "optimizer" not in data.name and not residual
                    at, size = data.id.get_offset(), data.id.get_storage_size()
                    wanted = residual if what == _RESIDUALS else is_weight
                    if data.dtype.kind == "f" and wanted and at is not None and size:
                        yield path, at, size
        elif path.suffix == ".index":
            reader = tf.train.load_checkpoint(str(path.with_suffix("")))
            (stored,) = [each for each in files if ".data-" in each.name]
            content = stored.read_bytes()
            for name, shape in reader.get_variable_to_shape_map().items():
                residual = "residual" in name or "_grace" in name
                is_weight = "optimizer" not in name and name.startswith("model/")
                value = reader.get_tensor(name)
                numbers = isinstance(value, np.ndarray) and value.dtype.kind == "f" and shape
                if numbers and (residual if what == _RESIDUALS else is_weight):
                    at = content.find(value.tobytes())
                    if at >= 0:
                        yield stored, at, value.nbytes


def flip(job: dict[str, Any], what: str, newest: int = -1) -> None:
    """Flips a bit of the weights or residuals of a backup."""
    draw = random.Random(job["fault"]["seed"])
    path, first, size = draw.choice(sorted(places(backups(folder_of(job))[newest], what)))
    content = bytearray(path.read_bytes())
    content[first + draw.randrange(size)] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def cut(job: dict[str, Any], suffixes: tuple[str, ...]) -> None:
    """Cuts a file of the newest backup, at any place."""
    draw = random.Random(job["fault"]["seed"])
    files = [p for p in backups(folder_of(job))[-1] if any(s in p.name for s in suffixes)]
    path = draw.choice(files)
    path.write_bytes(path.read_bytes()[: draw.randrange(path.stat().st_size)])


def remove_newest(job: dict[str, Any]) -> None:
    """Removes the newest backup, with its checksums."""
    for path in backups(folder_of(job))[-1]:
        path.unlink(missing_ok=True)
        (path.parent / "sha256").unlink(missing_ok=True)
        if path.suffix == ".index":
            path.with_suffix(".sha256").unlink(missing_ok=True)
        elif path.parent != folder_of(job) and not any(path.parent.iterdir()):
            path.parent.rmdir()


def damage_all(job: dict[str, Any]) -> None:
    for number in range(len(backups(folder_of(job)))):
        flip(job, _WEIGHTS, number)


def remove_all(job: dict[str, Any]) -> None:
    shutil.rmtree(folder_of(job))


def nothing(job: dict[str, Any]) -> None:
    """The backups are of another number of workers, or another worker's training."""


def replace(job: dict[str, Any]) -> None:
    """The backups of another model take the place of this worker's own."""
    folder, root = folder_of(job), pathlib.Path(job["folder"])
    shutil.rmtree(folder)
    shutil.copytree(root / "other" / folder.relative_to(root), folder)


KINDS = {
    "a bit of the weights": lambda job: flip(job, _WEIGHTS),
    "a bit of a residual": lambda job: flip(job, _RESIDUALS),
    "cut": lambda job: cut(job, (".h5", ".data-")),
    "cut json or index": lambda job: cut(job, (".json", ".index")),
    "newest missing": remove_newest,
    "all damaged": damage_all,
    "no backup": remove_all,
    "of fewer workers": nothing,
    "of more workers": nothing,
    "of another model": replace,
}
