"""Tables on a terminal: with rich where it is installed, plain text else; and as Markdown."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import TextIO

Rows = Sequence[Sequence[str]]


def print_table(title: str, columns: Sequence[str], rows: Rows, file: TextIO | None = None) -> None:
    """Prints a table of texts: by rich on a terminal, on a pipe as plain lines, never folded."""
    file = file or sys.stdout
    if file.isatty():
        try:
            from rich.console import Console
            from rich.table import Table
        except ModuleNotFoundError:  # an optional extra
            pass
        else:
            table = Table(*columns, title=title, title_justify="left")
            for row in rows:
                table.add_row(*row)
            Console(file=file).print(table)
            return
    print(plain(title, columns, rows), file=file, flush=True)


def plain(title: str, columns: Sequence[str], rows: Rows) -> str:
    """The table as lines of aligned text."""
    widths = [max(map(len, column)) for column in zip(columns, *rows)]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip()

    rule = "-" * min(sum(widths) + 2 * len(widths) - 2, shutil.get_terminal_size((100, 24)).columns)
    return "\n".join(["", title, rule, line(columns), rule, *map(line, rows), rule])


def markdown(columns: Sequence[str], rows: Rows) -> str:
    """The table in Markdown; bars inside cells are escaped."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(columns), line(["---"] * len(columns)), *map(line, rows)])
