"""Checks of hyperparameters at construction; each raises one sentence that says what is wrong."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any


def check_integer(owner: str, name: str, value: Any, low: int, high: int | None = None) -> None:
    """Raises TypeError unless `value` is an int, ValueError unless low <= value <= high."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{owner}: {name} is an integer, not {value!r}.")
    if value < low or (high is not None and value > high):
        span = f"from {low} to {high}" if high is not None else f"at least {low}"
        raise ValueError(f"{owner}: {name} is {span}, not {value!r}.")


def check_fraction(owner: str, name: str, value: Any) -> None:
    """Raises TypeError unless `value` is a number, ValueError unless 0 < value <= 1."""
    check_number(owner, name, value)
    if not 0 < value <= 1:
        raise ValueError(f"{owner}: {name} is a fraction in (0, 1], not {value!r}.")


def check_number(owner: str, name: str, value: Any) -> None:
    """Raises TypeError unless `value` is a finite int or float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError(f"{owner}: {name} is a finite number, not {value!r}.")


def check_choice(owner: str, name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raises ValueError unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(
            f"{owner}: {name} is one of {', '.join(map(str, choices))}, not {value!r}."
        )


def check_names(
    owner: str, given: Iterable[str], has: Iterable[str], keywords: Sequence[str]
) -> None:
    """Raises TypeError if a given name is not in `has`; the message lists wrap's `keywords` too."""
    for name in sorted(set(given) - set(has)):
        beside = f"; wrap() itself takes: {', '.join(keywords)}" if keywords else ""
        raise TypeError(
            f"{owner} has no hyperparameter {name!r}; it has: {', '.join(has) or 'none'}{beside}"
            f"{meant(name, [*has, *keywords])}"
        )


def meant(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: it proposes the most similar known name."""
    close = difflib.get_close_matches(name.strip().lower(), [*known], n=1)
    return f"; did you mean {close[0]!r}?" if close else "."
