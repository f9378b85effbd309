"""Marks the variables whose gradients a custom loop aggregates with an `Aggregator`."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from grace_tf.line.inputs import plain

_MARK = "_grace_aggregated"  # holds the Aggregators weakly


def mark(variables: Sequence[Any], aggregator: Any) -> None:
    """Marks that this Aggregator, which a custom loop calls, aggregates these variables."""
    for variable in variables:
        held = plain(variable)
        if not hasattr(held, _MARK):
            setattr(held, _MARK, weakref.WeakSet())
        getattr(held, _MARK).add(aggregator)


def aggregated(variable: Any) -> bool:
    """Whether an `Aggregator` that a custom loop calls has aggregated this variable's gradient.

    Aggregators that have been deleted do not count.
    """
    return len(aggregators_of(variable)) > 0


def aggregators_of(variable: Any) -> list[Any]:
    """The Aggregators that custom loops call for this variable's gradient."""
    return list(getattr(plain(variable), _MARK, ()))
