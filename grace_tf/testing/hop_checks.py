"""Checks of a compressor in two hops, as many workers use them."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from grace_tf.line import two_hops
from grace_tf.testing import cases
from grace_tf.testing.arrays import same_bits
from grace_tf.testing.subject import NOT_CLAIMED, SEED, SIZE, Subject, Verdict, demand
from grace_tf.testing.workers import Workers


def hops_agree(s: Subject) -> Verdict:
    """with a block: in two hops workers get the same bits, and the consensus of a gather"""
    c = s.compressor
    if not two_hops.possible(c, s.memory):
        return NOT_CLAIMED
    shapes = ((2 * SIZE * c.divides_at + 5,), (33,))
    grads = [[cases.normal(shape, 10 * w) for shape in shapes] for w in range(SIZE)]
    outcomes = []
    for exchange in "gather", "two_hop":
        workers = Workers(SIZE, c, memory=s.memory, seed=SEED, exchange=exchange)
        outcomes.append([[t.numpy() for t in mine] for mine in workers(grads)])
    wanted, found = outcomes
    for other in found[1:]:
        same = all(same_bits(a, b) for a, b in zip(found[0], other))
        demand(same, "In two hops two workers get different aggregates.")
    if c.aggregates == "consensus":
        same = all(np.array_equal(a, b) for a, b in zip(wanted[0], found[0]))
        demand(same, "In two hops the consensus is another than of gathered payloads.")
    return None


def sums_go_on(s: Subject) -> Verdict:
    """recompress_list loses no more of a sum than compress does, and nothing of a consensus"""
    c = s.compressor
    if not two_hops.possible(c, s.memory):
        return NOT_CLAIMED
    n = 2 * c.divides_at + 3
    for size in (2, 3):
        ctx = s.context((n,), 0, size=size)
        payloads = [
            c.compress(tf.constant(cases.normal((n,), 80 + w)), s.context((n,), w, size=size))
            for w in range(size)
        ]
        rows = {name: tf.stack([p[name] for p in payloads]) for name in payloads[0]}
        # The second decoding gets the context of the second hop, as in a real exchange.
        hop = ctx.hop()
        (total,) = c.aggregate_list(rows, hop.public())
        (again,) = c.aggregate_list(c.recompress_list([total], hop), ctx.public())
        once = c.decompress(c.compress(total, hop), hop.public())
        if c.aggregates == "consensus":
            once = total
        lost, allowed = (float(tf.norm(total - each)) for each in (again, once))
        demand(
            lost <= 1.01 * allowed,
            f"Sent again, an aggregate of {size} workers loses {lost:.3g} of "
            f"{float(tf.norm(total)):.3g}, by compress and decompress {allowed:.3g}.",
        )
    return None


CHECKS = (hops_agree, sums_go_on)
