"""Tables and progress: by rich on a terminal where it is installed, else plain lines; Markdown.

Output to a file or pipe is always plain, so that it is the same with and without rich.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

Rows = Sequence[Sequence[str]]


def print_table(title: str, columns: Sequence[str], rows: Rows, file: TextIO | None = None) -> None:
    """Prints a table of texts; rich folds cells to the terminal's width, plain lines are whole."""
    file = file or sys.stdout
    console = _console(file)
    if console is None:
        print(plain(title, columns, rows), file=file, flush=True)
        return
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")  # whole words where they fit, no dots
    for row in rows:
        table.add_row(*row)
    console.print(table)


class Progress:
    """The progress of a long command: a bar where rich draws one, else only the lines of `say`."""

    def __init__(self, bar: Any, title: str, total: int | None) -> None:
        self._bar = bar
        self._task = bar and bar.add_task(title, total=total)

    def advance(self, doing: str) -> None:
        """Call it when a step is done; the bar shows `doing` from now on."""
        if self._bar:
            self._bar.update(self._task, description=doing, advance=1, refresh=True)

    def say(self, line: str) -> None:
        """A line that stays, above the bar."""
        if self._bar:
            self._bar.console.print(line)
        else:
            print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress(title: str, total: int | None = None) -> Iterator[Progress]:
    """Shows on stderr, while its block runs, how many of `total` steps are done (None: unknown).

    With a total it draws only in `advance`, so that no thread disturbs a measurement.
    """
    console = _console(sys.stderr)
    if console is None:
        yield Progress(None, title, total)
        return
    from rich import progress as bars

    columns = (
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
    )
    ticking = total is None  # the bar then disappears at the end
    with bars.Progress(*columns, console=console, auto_refresh=ticking, transient=ticking) as bar:
        yield Progress(bar, title, total)


def plain(title: str, columns: Sequence[str], rows: Rows) -> str:
    """The table as lines of aligned text under its title."""
    lines = [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    aligned = ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in lines]
    return "\n".join([title, *aligned])


def markdown(columns: Sequence[str], rows: Rows) -> str:
    """The table in Markdown; bars inside cells are escaped."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(columns), line(["---"] * len(columns)), *map(line, rows)])


def _console(file: TextIO) -> Any:
    """Rich's console for this file; None where rich is missing or the file is no terminal."""
    try:
        from rich.console import Console
    except ModuleNotFoundError:  # an optional extra
        return None
    console = Console(file=file, markup=False, highlight=False)
    return console if console.is_terminal else None
