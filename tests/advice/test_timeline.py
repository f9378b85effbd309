"""The time of a step: what backward hides, what it cannot, and what a processor can do at once."""

import dataclasses
import json
import pathlib

import pytest

from grace_tf.advice.network import KINDS, Collective, Cost, Network
from grace_tf.advice.timeline import (
    Bucket,
    Compute,
    exchange_time,
    ready_shares,
    shares_by_size,
    step_time,
)

RESULTS = pathlib.Path(__file__).parents[2] / "benchmarks" / "results"
A_SECOND = Collective("sum", 1_000_000)  # on this network
NETWORK = Network(2, dict.fromkeys(KINDS, Cost(0.0, 1e-6)))
LATE = Network(2, dict.fromkeys(KINDS, Cost(0.5, 0.0)))


def bucket(ready, encode=0.0, decode=0.0, collectives=(A_SECOND,)):
    return Bucket(ready, encode, decode, collectives)


def test_the_exchange_of_early_buckets_is_hidden_behind_backward():
    compute = Compute(forward=1.0, backward=4.0, update=0.5)
    time = step_time(compute, [bucket(0.5), bucket(1.0)], NETWORK)
    assert time.seconds == pytest.approx(1 + 4 + 1 + 0.5)  # the last bucket alone is waited for
    assert (time.exchange, time.hidden) == pytest.approx((2.0, 1.0))


def test_nothing_is_hidden_in_one_bucket():
    time = step_time(Compute(1.0, 4.0), [bucket(1.0, 0.25, 0.125)], NETWORK)
    assert time.seconds == pytest.approx(1 + 4 + 0.25 + 1 + 0.125)
    assert time.hidden == pytest.approx(0.0)


def test_buckets_wait_for_one_another_on_the_link():
    time = step_time(Compute(0.0, 0.0), [bucket(1.0)] * 3, NETWORK)
    assert time.seconds == pytest.approx(3.0)


def test_buckets_wait_for_the_latency_together():
    several = [bucket(1.0)] * 3
    assert exchange_time(several, LATE) == pytest.approx(1.0)  # 2 hops
    second_round = dataclasses.replace(A_SECOND, round=1)
    rounds = [bucket(1.0, collectives=(A_SECOND, second_round))] * 3
    assert exchange_time(rounds, LATE) == pytest.approx(2.0)


def test_the_collectives_of_one_round_wait_together_and_the_longest_counts():
    gathered = Collective("gather", 10_000)  # one hop, and two of a sum
    rounds = [bucket(1.0, collectives=(gathered, A_SECOND))]
    assert exchange_time(rounds, LATE) == pytest.approx(1.0)
    assert exchange_time(rounds, NETWORK) == pytest.approx(1.01)  # they share the link


def test_a_processor_that_compresses_delays_backward():
    buckets = [bucket(0.5, encode=1.0, decode=1.0, collectives=())] * 2
    compute = Compute(0.0, 10.0)
    assert step_time(compute, buckets, NETWORK).seconds == pytest.approx(14.0)
    apart = dataclasses.replace(compute, shared=False)
    assert step_time(apart, buckets, NETWORK).seconds == pytest.approx(10.0)


def test_what_a_collective_takes_of_the_processor_delays_backward():
    """Buckets of 1 s on the link, of which the processor is busy for a half."""
    busy = Network(2, dict.fromkeys(KINDS, Cost(0.0, 1e-6, busy_byte=0.5e-6)))
    buckets = [bucket(0.1), bucket(0.2)]
    compute = Compute(0.0, 10.0)
    assert step_time(compute, buckets, NETWORK).seconds == pytest.approx(10.0)
    assert step_time(compute, buckets, busy).seconds == pytest.approx(11.0)
    apart = dataclasses.replace(compute, shared=False)
    assert step_time(apart, buckets, busy).seconds == pytest.approx(10.0)


def test_kernels_share_backward_equally_and_the_last_comes_first():
    sizes = [900, 10, 900, 10, 900, 10, 900, 10]  # kernels and shifts
    buckets = [[7, 6], [5, 4, 3], [2, 1, 0]]
    assert ready_shares(shares_by_size(sizes), buckets) == [0.25, 0.5, 1.0]
    measured = [0.5, 0.0, 0.25, 0.0, 0.125, 0.0, 0.125, 0.0]
    assert ready_shares(measured, buckets) == [0.125, 0.25, 1.0]


def test_committed_measurements_take_their_wire_and_a_little_more():
    """Whole exchanges of ResNet-50 between two workers at 1 Gbit/s: the rest is codec and hosts."""
    wire = Network(2, dict.fromkeys(KINDS, Cost(0.0, 8e-9)))
    measured = json.loads((RESULTS / "link-1gbit-resnet50.json").read_text())["rows"]
    assert len(measured) > 8
    for row in measured:
        kind = "gather" if "gather" in row["collectives"] else "sum"
        collectives = (Collective(kind, row["announced"]),)
        rest = row["seconds"] - exchange_time([bucket(1.0, collectives=collectives)], wire)
        assert 0.015 < rest < 0.1, row["method"]
