"""The tables of what benchmarks/faults.py has found, for its own output and for the docs."""

from __future__ import annotations

import collections
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from grace_tf.cli.tables import markdown
from injection.kinds import ENGINES, FAMILIES, KINDS, Ends
from injection.verdict import WRONGS

NAMES = {"group": "process group", "strategy": "MWMS", "horovod": "Horovod"}
_Row = Mapping[str, Any]


def of_file(path: pathlib.Path) -> dict[str, str]:
    return of_rows(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())


def of_rows(rows: Iterable[_Row]) -> dict[str, str]:
    """The tables in Markdown: "faults", a row for each engine; "fault-kinds", for each kind."""
    runs: dict[tuple[str, str], list[_Row]] = collections.defaultdict(list)
    version = ""
    for row in rows:
        if row["kind"] == "machine":
            version = row["tensorflow"].rpartition(".")[0]
        else:
            runs[version, row["engine"]].append(row)
    order = sorted(runs, key=lambda each: (each[0], -ENGINES.index(each[1])), reverse=True)
    return {"faults": _engines(runs, order), "fault-kinds": _kinds(runs, order)}


def _engines(runs: Mapping[Any, list[_Row]], order: list[Any]) -> str:
    cells = []
    for key in order:
        rows = runs[key]
        wrong = [{category for category, _ in row["wrong"]} for row in rows]
        resumed = [row["resumed"] for row in rows if row["resumed"] is not None]
        # A training that goes on after its fault has no time after which it stopped.
        stopped = [row["seconds"] for row in rows if row["stops"] and not row["wrong"]]
        cells.append(
            [
                *(key[0], NAMES[key[1]], f"{len(rows)}"),
                *(f"{sum(category in each for each in wrong)}" for category in WRONGS),
                f"{max(stopped, default=0.0):.1f} s",
                f"{sum(resumed)} of {len(resumed)}",
            ]
        )
    columns = ["TensorFlow", "engine", "faults", *WRONGS, "longest", "went on exactly"]
    return markdown(columns, cells)


def _kinds(runs: Mapping[Any, list[_Row]], order: list[Any]) -> str:
    """How many runs of each kind have held."""
    cells = []
    for name, kind in KINDS.items():
        found = []
        for key in order:
            rows = [row for row in runs[key] if row["kind"] == name]
            held = sum(not row["wrong"] for row in rows)
            found.append(f"{held} of {len(rows)}" if rows else "")
        if any(found):
            cells.append([FAMILIES[kind.family], name, _demands(kind), *found])
    columns = ["", "fault", "then", *(f"{NAMES[engine]}, {version}" for version, engine in order)]
    return markdown(columns, cells)


def _demands(kind: Any) -> str:
    """What must follow a kind, and under which engines something else."""
    told, usual = [], _demand(kind.follows)
    for engine, outcome in kind.elsewhere.items():
        if (demand := _demand(outcome)) != usual:
            told.append(f"{NAMES[engine]}: {demand}")
    return f"{usual} ({', '.join(told)})" if told else usual


def _demand(outcome: Any) -> str:
    if isinstance(outcome, tuple):
        return " or ".join(map(_demand, outcome))
    if not isinstance(outcome, Ends):
        return "stops"
    if outcome.goes_on:
        return "goes on" if outcome.exactly else "goes on alike"
    return "no effect" if outcome.exactly else "ends alike"
