"""`all_reduce`: a function that finds its `Aggregator` by the variables and the keywords."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from grace_tf.aggregation.aggregator import Aggregator
from grace_tf.line.inputs import plain
from grace_tf.line.settings import settings

_finding = threading.RLock()  # two threads must not make an Aggregator each


def all_reduce(
    grads: Sequence[Any], variables: Sequence[Any], compressor: Any = "qsgd", **keywords: Any
) -> list[Any]:
    """Aggregates gradients by an `Aggregator` of these keywords, which the variables own.

    The aggregator (state and step) lives as long as the variables.  A later call with the same
    variables and keywords uses it again.

    Args:
      grads: a tensor, IndexedSlices or None for each variable.
      variables: those that the gradients belong to, in the same order, none twice.
      compressor, **keywords: as for `grace_tf.Aggregator`, `reduce` and hyperparameters included.
    Returns: the aggregates, a list in the order of `grads`; None stays None.
    Raises: ValueError, TypeError or RuntimeError as an Aggregator and its call do.
    """
    reduce = keywords.pop("reduce", "auto")
    wanted = settings(compressor, **keywords).of_micro_batches(1)
    held = [plain(v) for v in variables]
    if len(held) != len(grads):
        raise ValueError(f"{len(grads)} gradients came with {len(held)} variables.")
    if not held:
        return []
    key = (tuple(map(id, held)), reduce, json.dumps(wanted.config(), sort_keys=True))
    with _finding:
        cache = held[0].__dict__.setdefault("_grace_aggregators", {})
        if key not in cache or not _alive(cache[key][1]):
            for other in [other for other, (_, of) in list(cache.items()) if not _alive(of)]:
                del cache[other]
            # The first variable, which holds the cache, is referenced weakly too: else it never
            # dies.
            cache[key] = Aggregator(wanted, held, reduce=reduce), [weakref.ref(v) for v in held]
        aggregator = cache[key][0]
    return aggregator(grads, variables)


def _alive(references: Sequence[weakref.ref]) -> bool:
    return all(reference() is not None for reference in references)
