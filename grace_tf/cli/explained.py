"""`explain`: what happens to each gradient and why, and what a step costs, as a table."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from typing import Any

from grace_tf.aggregation.account import Account, account_of
from grace_tf.aggregation.aggregator import Aggregator
from grace_tf.aggregation.measured import Metrics, largest, metrics_of
from grace_tf.cli.describe import bytes_text
from grace_tf.cli.tables import plain, print_table
from grace_tf.keras.classes import reducing
from grace_tf.keras.wrapping import aggregator_of

_COLUMNS = ("variable", "shape", "method", "memory", "bytes", "ratio", "exchange", "why")
_UNKNOWN = (
    "No variable is known yet: build the model, or give Aggregator its variables, or take a step, "
    "and ask again."
)
_UNMEASURED = "not measured: see grace_tf.keras.Monitor and Aggregator.measure"
_MEASURED = {  # by key of `as_dict`: what it is, and the factor and the unit for the table
    "encoding": ("encoding", 1e3, " ms"),
    "exchange": ("on the wire, with waiting for others", 1e3, " ms"),
    "decoding": ("decoding", 1e3, " ms"),
    "exposed": ("exposed: from the last gradient to the last aggregate", 1e3, " ms"),
    "vnmse": ("vNMSE, the error of the aggregates", 1, ""),
    "residual": ("norm of the residual to that of the gradient", 1, ""),
}
_PLANNED = "No step was taken yet: this is the plan for dense gradients of all variables."


class Explanation:
    """What `explain` returns: prints as a table; `as_dict()` has the same as plain values."""

    def __init__(self, accounts: Sequence[Account], metrics: Sequence[Metrics]) -> None:
        self._accounts, self._metrics = accounts, metrics

    @property
    def sentence(self) -> str:
        """What must happen before more can be said; "" where steps have been taken."""
        if not any(account.variables for account in self._accounts):
            return _UNKNOWN
        return _PLANNED if all(account.sizes.planned for account in self._accounts) else ""

    def as_dict(self) -> dict[str, Any]:
        """{"workers", "sentence", "choice", "variables": a list of dicts, "step": a dict}.

        A variable has "variable", "shape", "method", "memory", "bytes", "ratio", "exchange" and
        "why", a step "bytes" (handed to collectives), "sent" and "ratio", and of the last measured
        step what `Aggregator.metrics` has: "measured" (its number), "vnmse", "residual",
        "encoding", "exchange", "decoding" and "exposed" (seconds), None where it was not measured.
        "choice": the stage of the schedule, or why auto has taken this method.
        """
        variables = [
            dataclasses.asdict(each) for account in self._accounts for each in account.variables
        ]
        return {
            "workers": max(account.sizes.workers for account in self._accounts),
            "sentence": self.sentence,
            "choice": " ".join(self._stages()),
            "variables": variables,
            "step": self._step(),
        }

    def _step(self) -> dict[str, Any]:
        accounts = [account.sizes for account in self._accounts]
        handed, sent = sum(each.bytes for each in accounts), sum(each.sent for each in accounts)
        # Weighted by bytes: several accounts are those of the inner optimizers of a MultiOptimizer.
        dense = sum((each.ratio or 0) * (each.sent or each.bytes) for each in accounts)
        return {
            "bytes": handed,
            "sent": sent,
            "ratio": dense / (sent or handed) if handed else None,
            "measured": largest(self._metrics, "step"),
            **{name: largest(self._metrics, name) for name in _MEASURED},
        }

    def __str__(self) -> str:
        return "\n\n".join(plain(*table) for table in self._tables())

    __repr__ = __str__

    def _tables(self) -> list[tuple[str, Sequence[str], list[list[str]]]]:
        told = self.as_dict()
        rows = [
            [
                each["variable"],
                "×".join(map(str, each["shape"])) or "scalar",
                each["method"],
                each["memory"],
                "as rows" if each["bytes"] is None else bytes_text(each["bytes"]),
                "-" if each["ratio"] is None else f"{each['ratio']:.4g}",
                each["exchange"],
                each["why"],
            ]
            for each in told["variables"]
        ]
        workers = told["workers"]
        what = f"{workers} workers" if workers > 1 else "one worker, as if it were one of several"
        title = " ".join(filter(None, [f"By variable, {what}.", *self._stages(), self.sentence]))
        return [(title, _COLUMNS, rows), ("A step", ("what", "value"), self._step_rows(told))]

    def _stages(self) -> list[str]:
        told = []
        for account in self._accounts:
            now, count = account.stage
            if count > 1:
                told.append(account.choice or f"Stage {now} of {count} of the schedule.")
        return list(dict.fromkeys(told))

    def _step_rows(self, told: dict[str, Any]) -> list[list[str]]:
        step = told["step"]
        ratio = "-" if step["ratio"] is None else f"{step['ratio']:.4g}"
        return [
            ["bytes that a worker hands to collectives", f"{step['bytes']:,}"],
            ["bytes that a worker sends", f"{step['sent']:,.0f}"],
            ["ratio to uncompressed", ratio],
            *self._measured_rows(step),
        ]

    @staticmethod
    def _measured_rows(step: dict[str, Any]) -> list[list[str]]:
        """What was measured; where nothing was, how it can be."""
        known = [(_MEASURED[name], step[name]) for name in _MEASURED if step[name] is not None]
        if not known:
            return [["times, vNMSE and residual", _UNMEASURED]]
        rows = [[what, f"{scale * value:.3g}{unit}"] for (what, scale, unit), value in known]
        number = step["measured"]
        return rows if number is None else [["measured at step", f"{number:,}"], *rows]

    def print(self, file: io.TextIOBase | None = None) -> None:
        """Prints the tables, by rich on a terminal where it is installed.

        Args:
          file: where to; by default the standard output.
        """
        for table in self._tables():
            print_table(*table, file=file)


def explain(trained: Any) -> Explanation:
    """What happens to the gradient of each variable, and why; and what a step sends.

        print(grace_tf.explain(model.optimizer))

    By variable: method, memory, bytes a step, ratio to uncompressed, exchange and the reason.
    Bytes are those that a worker sends; those of a worker alone are what it would hand over as one
    of several.  Before the first step they are planned from the variables that are known.  Times,
    vNMSE and residual are those of the last step that was measured: see `grace_tf.keras.Monitor`
    and `Aggregator.measure`.  Nothing is communicated, and no state is made.

    Args:
      trained: a wrapped optimizer, an `Aggregator` or a `CompressedAllReduce`.
    Returns: an `Explanation`: `print` it, or take its `as_dict()`.
    Raises: ValueError for an optimizer that is not wrapped, TypeError for anything else.
    """
    found = aggregators_in(trained)
    return Explanation([account_of(each) for each in found], [metrics_of(each) for each in found])


def aggregators_in(trained: Any) -> list[Aggregator]:
    """The Aggregators of what `explain` takes; several for a MultiOptimizer.

    Raises ValueError and TypeError as `explain` does.
    """
    if isinstance(trained, Aggregator):
        return [trained]
    if isinstance(getattr(trained, "aggregator", None), Aggregator):
        return [trained.aggregator]
    found = [each._grace for each in reducing(trained)]
    return found or [aggregator_of(trained)]
