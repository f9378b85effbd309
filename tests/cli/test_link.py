"""Emulated links: what `--link` says, namespaces and relays, and that nothing of them stays."""

import asyncio
import contextlib
import io
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import launch
import pytest
from horovod_runs import needs_horovod

from grace_tf.cli import launcher
from grace_tf.cli.run.link import namespaces
from grace_tf.cli.run.link.forwarder import Forwarder
from grace_tf.cli.run.link.gpus import one_gpu
from grace_tf.cli.run.link.measured import measure
from grace_tf.cli.run.link.rates import Link, bits, milliseconds, parse_link
from grace_tf.cli.run.link.relay_program import Direction, Shaper
from grace_tf.cli.run.link.relay_program import Link as Relayed
from grace_tf.cli.run.link.relays import Relays
from grace_tf.transports.world.rank_from_environment import compared

PROGRAM = str(Path(__file__).parents[1] / "programs" / "launched.py")
FAST = Link(10e9)


def why_no_namespaces():
    """The reason why this machine or user makes none; None where it does."""
    try:
        with namespaces.Namespaces(FAST, 2):
            return None
    except namespaces.CannotMake as error:
        return str(error)


@pytest.fixture(scope="module")
def need_namespaces():
    if why := why_no_namespaces():
        pytest.skip(f"no network namespaces here: {why}")


def run(*words, workers=2, **keywords):
    """(exit code, lines on stdout, lines on stderr) of a run of the program."""
    out, err = io.StringIO(), io.StringIO()
    keywords = {"timeout": 60, "linger": 0, "link": "10gbit", **keywords}
    code = launcher.run([PROGRAM, *words], workers, stdout=out, stderr=err, **keywords)
    return code, out.getvalue().splitlines(), err.getvalue().splitlines()


def in_namespace(identity):
    """The processes in the network namespace of this identity, as /proc/self/ns/net shows it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/ns/net"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if os.readlink(entry) == identity:
                found.append(entry.parts[2])
    return found


@pytest.mark.parametrize(
    "text, link",
    [
        ("100mbit", Link(1e8)),
        ("1gbit,20ms", Link(1e9, 0.02)),
        (" 50KBIT , 1s ", Link(5e4, 1.0)),
        ("2.5gbit,500us,namespaces", Link(2.5e9, 0.0005, "namespaces")),
        ("1gbit,relay", Link(1e9, 0.0, "relay")),
    ],
)
def test_what_link_says(text, link):
    assert parse_link(text) == link


@pytest.mark.parametrize(
    "text",
    [
        "",
        "100",
        "mbit",
        "100mbits",
        "100 mbit",
        "-1mbit",
        "1tbit",
        "1mbit,",
        "1mbit,20",
        "1ms,1mbit",
    ]
    + ["1ms,1mbit", "1mbit,1ms,1ms", "1mbit,relay,1ms", "1mbit,relay,relay", "9kbit", "101gbit"]
    + ["1mbit,11s"],
)
def test_a_wrong_link_is_one_sentence(text):
    complaint = io.StringIO()
    with contextlib.redirect_stderr(complaint):
        from grace_tf.__main__ import main

        assert main(["run", "-np", "2", f"--link={text}", PROGRAM, "show"]) == 2
    (line,) = complaint.getvalue().splitlines()
    assert re.fullmatch(r"--link takes a rate .* such as 100mbit .* but got .*\.", line)


def test_links_are_for_two_workers_or_more_of_this_machine():
    with pytest.raises(ValueError, match="leave out -H"):
        run("show", hosts=[("localhost", 2)])
    with pytest.raises(ValueError, match="at least two workers"):
        run("show", workers=1)


def test_rates_and_times_in_words():
    assert [bits(rate) for rate in (95.64e6, 1e9, 5e4)] == ["95.6 Mbit/s", "1 Gbit/s", "50 kbit/s"]
    assert [milliseconds(t) for t in (0.02, 9.21e-6, 1.0)] == ["20 ms", "0.0092 ms", "1000 ms"]
    assert str(Link(1e8, 0.02)) == "100 Mbit/s and 20 ms each way"


def test_both_ends_of_every_link_are_shaped():
    found = namespaces.commands(Link(1e8), 3)
    shaped = [
        (where, words[4], words[6:]) for where, words in found if words[:2] == ["tc", "qdisc"]
    ]
    ends = [(1, "eth0"), (0, "p1"), (2, "eth0"), (0, "p2"), (3, "eth0"), (0, "p3")]
    assert [(where, device) for where, device, _ in shaped] == ends
    for _, _, words in shaped:
        assert words[:5] == ["handle", "1:", "tbf", "rate", "100000000bit"]
    late = namespaces.commands(Link(1e8, 0.02), 3)
    delays = [(where, words[5:]) for where, words in late if "netem" in words]
    wanted = ["parent", "1:1", "netem", "delay", "20000us", "limit", "100000"]
    assert delays == [(1, wanted), (2, wanted), (3, wanted)]


def test_each_worker_sees_one_gpu_as_on_a_host_of_its_own(tmp_path):
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    name = "CUDA_VISIBLE_DEVICES"
    assert [one_gpu(i, {}, tmp_path) for i in range(3)] == [{name: "0"}, {name: "1"}, {name: "0"}]
    assert one_gpu(1, {name: "5, 7"}, tmp_path) == {name: "7"}
    assert one_gpu(1, {name: "-1"}, tmp_path) == {}  # and so is any single one
    assert one_gpu(1, {name: ""}, tmp_path) == {}
    assert one_gpu(1, {}, tmp_path / "none") == {}


def test_a_forwarder_loses_no_byte_and_passes_on_the_end_of_each_direction():
    data = os.urandom(3_000_000)
    with socket.create_server(("127.0.0.1", 0)) as inner:
        outer = socket.create_server(("127.0.0.1", 0))

        def serve():
            with inner.accept()[0] as peer, peer.makefile("rb") as said:
                peer.sendall(said.read()[::-1])  # answers once the other direction has ended

        server = threading.Thread(target=serve)
        server.start()
        with outer, Forwarder(outer, *inner.getsockname()):
            with socket.create_connection(outer.getsockname()) as caller:
                caller.sendall(data)
                caller.shutdown(socket.SHUT_WR)
                with caller.makefile("rb") as answer:
                    assert answer.read() == data[::-1]
        server.join()


def test_a_forwarder_ends_what_is_open():
    with socket.create_server(("127.0.0.1", 0)) as inner:
        outer = socket.create_server(("127.0.0.1", 0))
        with outer, contextlib.ExitStack() as held:
            with Forwarder(outer, *inner.getsockname()):
                caller = held.enter_context(socket.create_connection(outer.getsockname()))
                caller.sendall(b"x")
                called = held.enter_context(inner.accept()[0])
                assert called.recv(1) == b"x"
            assert caller.recv(1) == called.recv(1) == b""


def test_a_shaper_keeps_to_its_rate_and_saves_up_no_more_than_its_burst():
    shaper = Shaper(rate=8000, burst=100)  # 1000 bytes a second
    assert shaper.reserve(5.0, 500) == pytest.approx((4.9, 5.4))
    assert shaper.reserve(5.0, 500) == pytest.approx((5.4, 5.9))  # behind the bytes before
    assert shaper.reserve(5.95, 100) == pytest.approx((5.9, 6.0))  # late by less than the burst
    assert shaper.reserve(9.0, 100) == pytest.approx((8.9, 9.0))  # silence is not saved up


def test_each_worker_and_direction_has_a_link_of_its_own():
    seconds = 1.0
    link = Relayed(rate=8000, latency=0.5, burst=0, now=lambda: seconds)

    def arrivals(*pairs):
        return [link.arrival(*pair, 1000)[1] for pair in pairs]

    assert arrivals((0, 1), (1, 0), (2, 3)) == [2.5, 2.5, 2.5]  # nothing in common
    assert arrivals((0, 2)) == [3.5]  # worker 0 sends behind what it has sent before
    assert arrivals((3, 1)) == [3.5]  # and worker 1 receives so


def test_no_byte_arrives_before_the_latency_is_over():
    link = Relayed(rate=8e6, latency=0.5, burst=4000, now=lambda: 1.0)
    assert link.arrival(0, 1, 1000)[1] == 1.5
    assert Relayed(8e6, 0.5, 0, lambda: 1.0).arrival(0, 1, 1000)[1] == pytest.approx(1.501)


def test_a_direction_delivers_each_byte_at_the_time_of_the_shapers():
    """With a clock that only sleeping moves, so one after the other reads and writes."""
    clock, delivered = [0.0], []

    async def sleep(seconds):
        clock[0] += seconds

    async def run():
        (source, near), (far, target) = socket.socketpair(), socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        data = os.urandom(10_000)
        with source, near, far, target:
            link = Relayed(rate=8e6, latency=0.25, burst=0, now=lambda: clock[0])
            direction = Direction(link, near, far, 0, 1)
            source.sendall(data)
            source.shutdown(socket.SHUT_WR)
            await direction.reads()
            loop = asyncio.get_running_loop()
            send = loop.sock_sendall

            async def noted(end, piece):
                delivered.append((clock[0], len(piece)))
                await send(end, piece)

            with mock.patch.object(loop, "sock_sendall", noted):
                await direction.writes()
            with target.makefile("rb") as got:
                assert got.read() == data

    with mock.patch.object(asyncio, "sleep", sleep):
        asyncio.run(run())
    count = 0
    for when, size in delivered:
        count += size
        assert when == pytest.approx(0.25 + count / 1e6)


@contextlib.contextmanager
def relayed(link=FAST):
    """(the relays of two workers, the server of worker 1, a connection there from worker 0)."""
    with socket.create_server(("127.0.0.3", 0)) as server:
        with Relays(link, [1, server.getsockname()[1]]) as made:
            for end in made.pair:
                end.close()
            host, _, port = made.seen_by(0)[1].rpartition(":")
            with socket.create_connection((host, int(port)), timeout=20) as caller:
                yield made, server, caller


def test_a_relay_loses_no_byte_and_passes_on_the_end_of_each_direction():
    data = os.urandom(3_000_000)
    with relayed() as (_, server, caller), server.accept()[0] as called:
        sender = threading.Thread(target=caller.sendall, args=(data,))
        back = threading.Thread(target=called.sendall, args=(data[::-1],))
        sender.start()
        back.start()
        with called.makefile("rb") as there, caller.makefile("rb") as here:
            assert here.read(len(data)) == data[::-1]
            back.join()
            sender.join()
            caller.shutdown(socket.SHUT_WR)
            assert there.read() == data  # up to the end of this direction alone
            called.sendall(b"and the other one goes on")
            called.shutdown(socket.SHUT_WR)
            assert here.read() == b"and the other one goes on"


def test_a_relay_resets_what_an_end_resets_or_refuses():
    with relayed() as (made, server, caller):
        with server.accept()[0] as called:
            called.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with pytest.raises(ConnectionResetError):
            caller.recv(1)
        server.close()
        host, _, port = made.seen_by(0)[1].rpartition(":")
        with pytest.raises(ConnectionResetError):  # of recv, or already of connect
            with socket.create_connection((host, int(port)), timeout=20) as late:
                late.recv(1)


def test_every_pair_of_workers_has_a_port_and_sees_the_true_hosts():
    with Relays(FAST, [7001, 7002, 7003]) as made:
        assert made.true == ["127.0.0.2:7001", "127.0.0.3:7002", "127.0.0.4:7003"]
        seen = [made.seen_by(worker) for worker in range(3)]
    ports = [address for i, each in enumerate(seen) for j, address in enumerate(each) if i != j]
    assert len(set(ports)) == 6
    for worker, each in enumerate(seen):
        assert each[worker] == made.true[worker]
        hosts = [address.rpartition(":")[0] for address in each]
        assert hosts == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]


def test_a_measurement_sees_both_the_rate_and_the_latency():
    link = Link(4e6, 0.05)
    with Relays(link, [1, 2]) as made:
        rate, latency = measure(*made.pair, link)
    assert 0 < rate < 5e6  # a busy machine may give less, and none gives more
    assert latency >= 0.05


def test_where_no_namespace_can_be_made_a_relay_is_taken_and_says_so():
    with mock.patch.dict(os.environ, {"PATH": "/nowhere"}):
        code, out, err = run("show", link="10gbit")
    assert code == 0, err
    assert re.fullmatch(
        r"\[grace_tf\] every worker has a link of 10 Gbit/s each way, by a TCP relay between the "
        r"workers' ports \(network namespaces: .+\); measured from worker 0 to 1: .+\.",
        err[0],
    )
    for line in out:
        rank, config = int(line[1]), json.loads(line[4:])[0]
        true, seen = config["grace_tf"]["addresses"], config["cluster"]["worker"]
        assert true[rank] == seen[rank] and true[1 - rank] != seen[1 - rank]


def test_what_cannot_be_emulated_is_one_sentence():
    for link, horovod in (("10gbit,namespaces", False), ("10gbit,relay", True)):
        with mock.patch.dict(os.environ, {"PATH": "/nowhere"}):
            code, out, err = run("show", link=link, horovod=horovod)
        assert (code, out) == (1, [])
        assert re.fullmatch(r"\[grace_tf\] cannot emulate links .*namespaces: .*\.", err[0])
        assert len(err) == 1


def test_workers_behind_a_relay_compare_their_true_addresses():
    true, seen = ["127.0.0.2:1", "127.0.0.3:2"], ["127.0.0.2:1", "127.0.0.3:9"]
    config = {"cluster": {"worker": seen}, "task": {"type": "worker", "index": 0}}
    with mock.patch.dict(os.environ, {"TF_CONFIG": json.dumps(config)}):
        assert compared(seen) == tuple(seen)
    config["grace_tf"] = {"addresses": true}
    with mock.patch.dict(os.environ, {"TF_CONFIG": json.dumps(config)}):
        assert compared(seen) == tuple(true)
        assert compared(["a:1", "b:2"]) == ("a:1", "b:2")  # of init(workers=…)
    with mock.patch.dict(os.environ, {"TF_CONFIG": "rubbish"}):
        assert compared(seen) == tuple(seen)


def test_workers_have_addresses_of_their_own_and_reach_nothing_else(need_namespaces):
    with socket.create_server(("127.0.0.1", 0)) as outside:
        code, out, err = run("surroundings", str(outside.getsockname()[1]), workers=3)
    assert code == 0, err
    assert re.fullmatch(
        r"\[grace_tf\] every worker has a link of 10 Gbit/s each way, by network namespaces, .* "
        r"measured from worker 0 to 1: [\d.]+ [MG]bit/s and [\d.]+ ms.*\.",
        err[0],
    )
    said = {int(line[1]): json.loads(line[4:]) for line in out}
    assert {each["namespace"] for each in said.values()}.isdisjoint(
        [os.readlink("/proc/self/ns/net")]
    )
    assert len({each["namespace"] for each in said.values()}) == 3
    for rank, each in said.items():
        hosts = [address.rpartition(":")[0] for address in each["addresses"]]
        assert hosts == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
        assert each["name"] == hosts[rank]
        assert each["bound"] == each["addresses"][rank]
        assert each["interfaces"] == ["eth0", "lo"]
        assert each["outside"] is False
        assert each["user"] == os.getuid()


@pytest.fixture(params=["namespaces", "relay"])
def way(request):
    if request.param == "namespaces":
        request.getfixturevalue("need_namespaces")
    return request.param


def test_a_failing_worker_ends_a_run_with_links_as_any_other(way):
    code, _, err = run("fail", link=f"10gbit,{way}")
    assert code == 7
    assert err[1:] == [
        "[grace_tf] worker 1 ended with exit code 7; ending the other 1.",
        "[grace_tf] worker 1 ended with exit code 7 first.",
    ]
    code, _, err = run("end_launcher", str(int(signal.SIGINT)), link=f"10gbit,{way}")
    assert code == 128 + signal.SIGINT and "stopped by SIGINT" in err[-1]
    assert programs_of(os.getpid()) == []


def programs_of(parent):
    """The children of a process that are programs of the links."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            status, words = (entry / "status").read_text(), (entry / "cmdline").read_bytes()
            if f"\nPPid:\t{parent}\n" in status and b"/run/link/" in words:
                found.append(words)
    return found


def test_nothing_stays_of_a_launcher_that_is_killed(way, tmp_path):
    fifo, file = tmp_path / "fifo", tmp_path / "workers"
    os.mkfifo(fifo)
    words = ["run", "-np", "2", f"--link=10gbit,{way}", PROGRAM, "orphans", str(fifo), str(file)]
    # A relay that stayed would keep the pipe of stderr open.
    ended = subprocess.run(
        [sys.executable, "-m", "grace_tf", *words], timeout=60, capture_output=True
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    for pid, identity in json.loads(file.read_text()):
        with contextlib.suppress(ProcessLookupError), open(os.pidfd_open(pid), "rb") as process:
            assert select.select([process], [], [], 20)[0]
        if way == "namespaces":
            assert identity != os.readlink("/proc/self/ns/net")
            assert in_namespace(identity) == []


def test_a_process_group_trains_through_a_relay():
    run = launch.launch("linked.py", link="1gbit,2ms,relay").succeeded()
    (first,), (second,) = run.answers()
    assert first["sum"] == second["sum"] == [3.0] * 4
    assert first["hosts"] == second["hosts"] == ["127.0.0.2", "127.0.0.3"]
    assert first["weights"] == second["weights"]
    assert "1 Gbit/s and 2 ms each way, by a TCP relay" in run.launcher[0]


@needs_horovod
@pytest.mark.slow
def test_horovod_s_workers_meet_in_their_namespaces(need_namespaces):
    words = "horovod_calls.py", "calls"
    run = launch.launch(*words, horovod=True, link="1gbit", cold=True).succeeded()
    assert "network namespaces" in run.launcher[0]


@pytest.mark.slow  # the workers import TensorFlow themselves, each in its namespace
@pytest.mark.parametrize("engine", ["group", "strategy"])
def test_trainings_go_over_shaped_links(engine, need_namespaces):
    words = ["strategy"] if engine == "strategy" else []
    run = launch.launch("linked.py", *words, link="1gbit", cold=True).succeeded()
    (first,), (second,) = run.answers()
    assert first["sum"] == second["sum"] == [3.0] * 4
    assert first["hosts"] == second["hosts"] == ["10.77.0.1", "10.77.0.2"]
    assert first["weights"] == second["weights"]
    assert "1 Gbit/s each way, by network namespaces" in run.launcher[0]
