"""The file of results: one line of JSON for each cell, and lines that describe the machine.

A cell's line is written when the cell ends.  A stopped benchmark loses only the unfinished cell.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.suite.plan import Cell, cell_of


class NotUsable(ValueError):
    """The file of results is damaged, or another run writes to it."""


class Results:
    """The lines of a file; `records` are those of cells."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.machines: list[dict[str, Any]] = []
        self.records: list[dict[str, Any]] = []
        self.read()

    def read(self) -> None:
        """Reads the file again.  Of two records of one cell the later counts.

        A last line without its end is not read: it is being written, or its run was killed.
        Raises NotUsable where another line is not JSON.
        """
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        whole = text.rpartition("\n")[0]
        found: dict[Cell, dict[str, Any]] = {}
        self.machines = []
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise NotUsable(f"Line {number} of {self.path} is not JSON: {error}.") from None
            if record["kind"] == "machine":
                self.machines.append(record)
            else:
                found[cell_of(record)] = record
        self.records = list(found.values())

    def repair(self) -> None:
        """Removes an incomplete last line, which a killed run has left.

        Only for the one that holds the lock, while no worker writes.
        """
        text = self.path.read_bytes() if self.path.exists() else b""
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            os.truncate(self.path, whole)

    @contextlib.contextmanager
    def lock(self) -> Iterator[int]:
        """Keeps other runs from the file; gives a descriptor that holds the lock as long as any
        process has it, so workers that outlive a killed run keep it too.

        Raises NotUsable where another run has it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise NotUsable(
                    f"Another run writes to {self.path}, or the workers of one that was killed: "
                    "wait for its end."
                ) from None
            yield file.fileno()

    def missing(self, cells: Iterable[Cell], again: bool = False) -> list[Cell]:
        """The cells that have no record; with `again` also those whose record is an error."""
        done = {cell_of(r) for r in self.records if not (again and "error" in r)}
        return [cell for cell in dict.fromkeys(cells) if cell not in done]


def append(path: str | Path, record: dict[str, Any]) -> None:
    """Writes a line, whole or not at all as far as other programs of this machine can see."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(record, allow_nan=False) + "\n")
