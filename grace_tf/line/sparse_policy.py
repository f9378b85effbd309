"""Decides how the sparse gradient of a compressed variable travels: one of three ways.

  * As compressed rows, where the memory is `by_rows`, each worker compresses its own gradient, and
    the compressor is `elementwise`, such as a quantiser, or selects rows (`row_share`), such as
    topk.  A selection needs a memory that keeps the rows that are not sent.
  * As rows in full precision, without a memory: where the compressor does neither, as with low
    rank, or the memory is not `by_rows`.  A batch touches few rows anyway.
  * Dense, where the method needs every element of every worker: for a consensus, since workers
    without the row vote too; for a memory that `needs_every_row`, such as a momentum; and where the
    number of rows must be static.

For the last two ways, a log line says so once for each variable.
"""

from __future__ import annotations

import logging

from grace_tf.core.compressor import Compressor
from grace_tf.core.memory import Memory
from grace_tf.line import row_selection

_LOG = logging.getLogger("grace_tf")

ROWS, PLAIN_ROWS, DENSE_LANE = "rows", "plain rows", "dense"


def rule(
    compressor: Compressor, memory: Memory, dense: bool, static: str, hierarchical: bool
) -> tuple[str, str]:
    """ROWS, PLAIN_ROWS or DENSE_LANE for sparse gradients, and why they are not compressed rows.

    Args:
      dense: whether the variable has neither compression nor memory, so no reason is needed.
      hierarchical: whether the gradients of a host's workers are added up first.
      static: what needs a static number of rows, which gradients lack; "" where nothing does.
    """
    if dense:
        return PLAIN_ROWS, ""
    if memory.needs_every_row:
        return DENSE_LANE, f"the memory {memory.name} needs all rows in every step"
    if compressor.aggregates != "sum":
        return DENSE_LANE, f"the consensus of {compressor} needs all rows"
    if static:
        return DENSE_LANE, f"{static} needs a static number of rows"
    if row_selection.coder(compressor) is None:
        return PLAIN_ROWS, f"{compressor} does not compress rows by themselves"
    if row_selection.sends_all(compressor):
        return PLAIN_ROWS, f"{compressor} sends all rows"
    if hierarchical:
        return PLAIN_ROWS, "hierarchical adds up no rows inside hosts"
    if not memory.by_rows:
        return PLAIN_ROWS, f"the memory {memory.name} does not go row by row"
    if compressor.row_share is not None and not memory.needs_sent:
        return PLAIN_ROWS, f"the memory {memory.name} would lose the rows that are not sent"
    return ROWS, ""


_told_of: set[tuple[str, str]] = set()  # (path, way)


def tell(path: str, way: str, why: str) -> None:
    """Says once how the sparse gradients of the variable at this path travel, and why."""
    if why and (path, way) not in _told_of:
        _told_of.add((path, way))
        how = "is made dense" if way == DENSE_LANE else "travels as rows that are not compressed"
        _LOG.warning("The sparse gradient of %s %s: %s.", path, how, why)
