"""The cost model of collectives: bytes as the transports count them, and what latency does."""

import pytest

from grace_tf.advice.link import Link
from grace_tf.advice.network import KINDS, Collective, Cost, Network, over_link
from grace_tf.transports.base import CollectiveRecord

GBIT = Link(1e9)
FREE = Cost(0.0, 0.0)


def network(size, cost, **keywords):
    return Network(size, dict.fromkeys(KINDS, cost), **keywords)


@pytest.mark.parametrize("kind", [*KINDS, "max"])
@pytest.mark.parametrize("size", [2, 3, 8, 1024])
def test_a_worker_sends_what_the_transports_count(kind, size):
    # A transport records each sum as "sum"; only the network model has a name for sums of 16 bits.
    record = CollectiveRecord("sum" if kind == "half_sum" else kind, "float32", 3000)
    assert Collective(kind, record.nbytes).sent(size) == record.sent(size)


def test_an_all_reduce_occupies_the_link_for_its_bytes():
    million = Collective("sum", 1_000_000)
    assert network(2, over_link(GBIT, FREE)).occupied(million) == pytest.approx(8e-3)
    assert network(4, over_link(GBIT, FREE)).occupied(million) == pytest.approx(12e-3)


def test_a_gather_grows_with_the_workers_and_an_all_reduce_does_not():
    cost = over_link(GBIT, FREE)
    for kind, times in (("gather", 63.0), ("sum", 63 / 32)):
        one, many = (network(n, cost).occupied(Collective(kind, 1000)) for n in (2, 64))
        assert many / one == pytest.approx(times)


def test_latency_counts_twice_for_each_hop_and_occupies_nothing():
    slow = network(4, over_link(Link(1e9, 0.01), FREE))
    beside = {kind: slow.beside(Collective(kind, 4)) for kind in KINDS}
    assert beside == pytest.approx(
        {"sum": 0.12, "half_sum": 0.12, "gather": 0.06, "all_to_all": 0.02}
    )
    assert slow.occupied(Collective("sum", 4)) < 1e-6


def test_the_machines_set_the_pace_where_the_link_is_faster():
    host = Cost(1e-3, 4e-9, busy_hop=2e-4, busy_byte=1e-9)  # 2 Gbit/s
    fast, slow = over_link(Link(1e11), host), over_link(Link(1e8), host)
    assert (fast.byte, fast.hop) == (host.byte, host.hop)
    assert fast.ends == pytest.approx(0.0)
    assert slow.byte == pytest.approx(8e-8)
    assert slow.ends == pytest.approx(2e-9)
    # A slower link leaves the processors as much to do.
    assert network(3, slow).busy(Collective("gather", 1000)) == pytest.approx(4e-4 + 2e-6)


def test_one_worker_sends_nothing():
    assert network(1, over_link(GBIT, FREE)).occupied(Collective("sum", 1000)) == 0.0


def test_the_processes_of_a_host_move_a_piece_each_and_add_up_inside():
    cost = dict.fromkeys(KINDS, Cost(0.0, 0.0, busy_byte=1e-9))
    whole, hosts = Network(2, cost), Network(2, cost, 2, cost)
    buffer = Collective("sum", 1000)  # of which a worker sends 1000 bytes, and a process 500
    assert whole.busy(buffer) == pytest.approx(1000e-9)
    assert hosts.busy(buffer) == pytest.approx((500 + 500) * 1e-9)  # and gathers its piece of it
    assert (whole.busy_inside(4000), hosts.busy_inside(4000)) == pytest.approx((0.0, 4000e-9))


def test_a_host_of_several_sends_once_and_adds_up_inside():
    inside = dict.fromkeys(KINDS, Cost(0.0, 1e-9))
    flat, hosts = (network(4, over_link(GBIT, FREE), per_host=k, inside=inside) for k in (1, 8))
    million = Collective("gather", 1_000_000)
    assert hosts.occupied(million) == flat.occupied(million)
    assert hosts.sent([million]) == flat.sent([million]) / 8
    # The pieces of the 4 MB that arrive come together inside the host.
    assert hosts.beside(million) - flat.beside(million) == pytest.approx(0.5e6 * 7 * 1e-9)
    assert hosts.seconds_inside(8_000_000) == pytest.approx(14e6 * 1e-9)
    assert flat.seconds_inside(8_000_000) == 0.0
