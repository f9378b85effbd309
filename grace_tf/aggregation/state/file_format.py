"""The file format of a saved state: arrays by name, a table of variables and methods, a header.

It turns the rows of leaves into arrays that any file can hold, and back.  Format 2 names a leaf
`<variable's name>/<memory|compressor>/<leaf>`; format 1 had the variable's ordinal instead of its
name and no table.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence

import numpy as np

from grace_tf.aggregation.state.variable_registry import Shape

_HEADER = "grace"  # the array of (format, size, worker ids …)
_TABLE = "grace/table"  # the bytes of the table's text
FORMATS = (1, 2)


@dataclasses.dataclass(frozen=True)
class Saved:
    """One leaf as it was saved: `rows[i]` is that of worker `workers[i]` of `size`."""

    rows: np.ndarray
    size: int
    workers: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Table:
    """`variables`: (ordinal, shape) by variable's name, in the order of joining.  `made`: the name
    of the method by leaf."""

    variables: dict[str, tuple[int, Shape]]
    made: dict[str, str]

    def text(self) -> str:
        """The table as JSON."""
        variables = [[name, *ordinal_shape] for name, ordinal_shape in self.variables.items()]
        return json.dumps({"variables": variables, "made": self.made})

    @staticmethod
    def of(text: str | bytes) -> Table:
        """The table of this text; raises ValueError where it is none."""
        try:
            table = json.loads(text)
            rows = table["variables"]
            variables = {name: (int(ordinal), tuple(shape)) for name, ordinal, shape in rows}
            return Table(variables, dict(table["made"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                "This saved state is damaged: its table of variables cannot be read; restore "
                "another file."
            ) from error


def packed(
    rows: Mapping[str, np.ndarray], size: int, workers: tuple[int, ...], table: Table | None
) -> dict[str, np.ndarray]:
    """The arrays of a file, of format 1 where there is no table."""
    arrays = dict(rows)
    if table is not None:
        arrays[_TABLE] = np.frombuffer(table.text().encode(), np.uint8)
    arrays[_HEADER] = np.array([1 if table is None else 2, size, *workers], np.int64)
    return arrays


def unpacked(arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, Saved], Table | None]:
    """Leaves by name, and the table if there is one.

    Raises ValueError where the arrays are no saved state.
    """
    if _HEADER not in arrays:
        raise ValueError("This is no saved state of grace_tf: it names no workers.")
    format_, *whose = [int(x) for x in np.ravel(arrays[_HEADER])] or [0]
    if format_ not in FORMATS:
        raise ValueError(
            f"This saved state has the format {format_}; this version reads "
            f"{' and '.join(map(str, FORMATS))}."
        )
    leaves = {
        stem: saved_by(whose, np.asarray(rows), stem)
        for stem, rows in arrays.items()
        if stem not in (_HEADER, _TABLE)
    }
    if format_ == 1:
        return leaves, None
    return leaves, Table.of(np.asarray(arrays.get(_TABLE, []), np.uint8).tobytes())


def saved_by(whose: Sequence[int], rows: np.ndarray, stem: str) -> Saved:
    """The rows of a leaf that a file ascribes to `whose`: the number of workers, then their ids.

    Raises ValueError where these cannot be.
    """
    size, *workers = whose or [0]
    different = len(set(workers)) == len(workers) == len(rows[..., None])
    if size < 1 or not different or not all(0 <= worker < size for worker in workers):
        raise ValueError(
            f"This saved state is damaged: {stem} has {len(rows[..., None])} rows of the workers "
            f"{workers} of {size}; restore another file."
        )
    return Saved(rows, size, tuple(workers))


def as_key(stem: str) -> str:
    """The array's name with its slashes replaced, since some files make groups of them."""
    return stem.replace(".", "..").replace("/", ".S")


def from_keys(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a file by their names, where the file has them by `as_key` of the names.

    Format 1 wrote a dot for a slash.
    """
    if int(arrays.get(_HEADER, [0])[0]) == 1:
        return {key.replace(".", "/", 2): rows for key, rows in arrays.items()}
    return {_from_key(key): rows for key, rows in arrays.items()}


def _from_key(key: str) -> str:
    return re.sub(r"\.([.S])", lambda pair: "/" if pair[1] == "S" else ".", key)
