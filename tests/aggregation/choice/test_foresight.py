"""What exchanges and codecs take, as "auto" measures it before the first step."""

import dataclasses
import statistics
from unittest import mock

import pytest
import tensorflow as tf

from grace_tf.advice.network import KINDS, Collective, Cost, Network
from grace_tf.aggregation.choice import foresight
from grace_tf.aggregation.measure import codec, link
from grace_tf.aggregation.measure.codec import EagerStep, lasting
from grace_tf.line.plan import make_plan
from grace_tf.line.settings import settings
from grace_tf.transports.loopback import Loopback

COSTS = {kind: Cost(1e-3 * place, 1e-8 * place) for place, kind in enumerate(KINDS, 1)}


class Wire:
    """A network between four workers on a simulated clock, `slow` times as slow as COSTS say."""

    size = 4

    def __init__(self, slow=1.0, calling=0.0):
        self.slow, self.now, self.calls, self.calling = slow, 0.0, [], calling

    def call(self, transport, kind, nbytes, keys):
        each = Collective(kind, nbytes)
        cost = COSTS[kind]
        seconds = each.hops(4) * cost.hop + each.sent(4) * cost.byte

        def run():
            self.calls.append((kind, nbytes))
            self.now += self.slow * (len(keys) * seconds + self.calling)
            return []

        return run

    def costs(self, agree=list, seconds=1e9, repeats=5, **keywords):
        with mock.patch.object(link, "_call", self.call):
            given = foresight.SIZES, repeats, seconds
            return link.costs(self, agree, *given, clock=lambda: self.now, **keywords)


def test_the_costs_are_those_of_the_network():
    wire = Wire()
    found = wire.costs()
    for kind, cost in COSTS.items():
        assert found[kind].byte == pytest.approx(cost.byte)
        assert found[kind].hop == pytest.approx(cost.hop, rel=0.05)
    assert len(wire.calls) == 6 * 3 * len(KINDS)
    assert [kind for kind, _ in wire.calls[: 2 * len(KINDS)]] == [*KINDS, *KINDS]  # interleaved


def test_where_several_collectives_are_called_at_once_the_call_does_not_count():
    wire = Wire(calling=0.007)
    found, longer = wire.costs(in_turn=5), Wire(calling=0.007).costs()
    for kind, cost in COSTS.items():
        assert found[kind].byte == pytest.approx(cost.byte)
        assert found[kind].hop == pytest.approx(cost.hop, rel=0.05)
        assert longer[kind].hop > 1.1 * cost.hop


@pytest.mark.parametrize("slow, rounds", [(1, 6 + 6), (10, 3 + 2), (30, 2 + 2)])
def test_a_slow_network_is_measured_with_fewer_rounds_and_sizes(slow, rounds):
    """A round takes 32 and 74 ms with small and middle buffers, `slow` times as long."""
    wire = Wire(slow)
    found = wire.costs(seconds=1.0)
    assert {nbytes for _, nbytes in wire.calls} == set(foresight.SIZES[:2])
    assert len(wire.calls) == rounds * len(KINDS)
    assert found["gather"].byte == pytest.approx(slow * COSTS["gather"].byte)


def test_the_slowest_worker_counts():
    """The other worker's network is ten times as slow, and its clock ends the repeats."""
    found = Wire().costs(agree=lambda numbers: [10 * each for each in numbers])
    assert found["sum"].byte == pytest.approx(10 * COSTS["sum"].byte)


@pytest.mark.parametrize("of_repeats, slow", [(min, 1), (statistics.median, 3)])
def test_of_the_repeats_the_shortest_or_the_median_counts(of_repeats, slow):
    wire = Wire()
    paces = iter([3, 1, 7, 9] * len(foresight.SIZES))

    def agree(numbers):  # between two rounds; the first of each size is the warm-up
        wire.slow = next(paces, 1)
        return numbers

    found = wire.costs(agree, repeats=3, of_repeats=of_repeats)
    assert found["sum"].byte == pytest.approx(slow * COSTS["sum"].byte)


def plan_of(spec, shapes, **keywords):
    specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    paths = [str(i) for i in range(len(shapes))]
    return make_plan(settings(spec, **keywords).at(0), paths, specs, range(len(shapes)))


def test_the_collectives_of_a_bucket_know_their_bucket_and_round():
    plan = dataclasses.replace(plan_of("powersgd", [(100, 300), (7,)]), first_key=5000)
    step = EagerStep(plan, 4)
    step.least(repeats=1)
    assert [(bucket, each.kind, each.round) for bucket, each in step._handed] == [
        (0, "sum", 0),
        (0, "sum", 1),
    ]


@pytest.mark.parametrize("spec", ["none", "bf16", "eden", "powersgd", "topk:ratio=0.01"])
def test_what_was_not_run_is_taken_to_be_alike(spec):
    """Three buckets of one variable each, of which one is run, and then all of them."""
    plan = plan_of(spec, [(100, 300)] * 3, bucket_bytes=4 * 100 * 300)
    assert len(plan.buckets) == 3
    sent = []
    for most in (1, codec.MOST):
        with mock.patch.object(codec, "MOST", most):
            step = EagerStep(plan, 4)
        assert step.least(repeats=1) > 0
        shares = step.shares()
        assert len(shares) == 3
        assert sum(each.encode + each.decode for each in shares) == pytest.approx(
            3 if most == 1 else 1
        )
        assert lasting(shares, 4.0)[0].encode == pytest.approx(4 * shares[0].encode)
        sent.append(Network(4, COSTS).sent([c for each in shares for c in each.collectives]))
    assert sent[0] == pytest.approx(sent[1], rel=1e-3)


def test_sums_of_16_bit_elements_are_a_kind_of_their_own():
    step = EagerStep(plan_of("bf16", [(100, 300)]), 2)
    step.least(repeats=1)
    (bucket,) = step.shares()
    assert [each.kind for each in bucket.collectives] == ["half_sum"]


def test_plans_of_rows_alone_cannot_be_predicted():
    specs = [tf.TensorSpec((5000, 16), tf.float32)]
    plan = make_plan(settings("eden").at(0), ["v"], specs, [0], rows=[0])
    assert foresight.foresee({0: plan}, Loopback(), list) is None
