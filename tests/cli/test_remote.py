"""Workers on other hosts: how they start, what environment they get, and that they end.

Most tests use programs/ssh.py in place of ssh.  It needs no network.  One test uses a real sshd.
"""

import contextlib
import getpass
import io
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from test_launcher import PROGRAM, gone

import grace_tf
from grace_tf.cli import launcher
from grace_tf.cli.run import hosts, local_and_ssh, remote_worker

PROGRAMS = Path(PROGRAM).parent
SSH = shlex.join([sys.executable, str(PROGRAMS / "ssh.py"), "-o", "Some=option"])
ROOT = str(Path(grace_tf.__file__).parents[1])


@pytest.fixture(autouse=True)
def checkout(monkeypatch):
    """Workers on other hosts get this PYTHONPATH and find the package that is tested."""
    path = [ROOT, os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))


def run(where, *words, program=PROGRAM, **keywords):
    """(exit code, lines on stdout, lines on stderr) of a run on these hosts."""
    out, err = io.StringIO(), io.StringIO()
    keywords = {"timeout": 60, "linger": 0, "ssh": SSH, **keywords}
    given = hosts.parse_hosts(where)
    workers = sum(slots for _, slots in given)
    code = launcher.run([str(program), *words], workers, given, stdout=out, stderr=err, **keywords)
    return code, out.getvalue().splitlines(), err.getvalue().splitlines()


def said(lines):
    """What each worker printed as JSON."""
    return {int(line[1]): json.loads(line[4:]) for line in lines}


@pytest.mark.slow
def test_workers_on_two_hosts_train_and_agree():
    code, out, err = run(
        "x2.invalid:2,x3.invalid:1", "fit", "qsgd", program=PROGRAMS / "train.py", timeout=240
    )
    assert code == 0, err
    results = said([line for line in out if line[4:5] == "{"])
    assert sorted(results) == [0, 1, 2]
    assert len({sha for result in results.values() for sha in result["shas"]}) == 1


def test_every_worker_is_told_addresses_that_others_can_use():
    code, out, err = run("localhost:1,x2.invalid:2,me@127.0.0.3:1", "told")
    assert (code, err) == (0, [])
    told = said(out)
    (addresses,) = {tuple(each["config"]["cluster"]["worker"]) for each in told.values()}
    found = [address.rpartition(":")[0] for address in addresses]
    assert found == ["127.0.0.1", "127.0.0.2", "127.0.0.2", "127.0.0.3"]
    assert len({address.rpartition(":")[2] for address in addresses}) == 4
    for rank in range(4):
        assert told[rank]["config"]["task"] == {"type": "worker", "index": rank}
        assert told[rank]["folder"] == os.getcwd()
        assert told[rank]["python"] == os.path.normpath(sys.executable)


def test_what_workers_get_of_the_environment(monkeypatch):
    monkeypatch.setenv("PLAIN", "is not sent")
    monkeypatch.setenv("WANTED", "two\nlines")
    monkeypatch.setenv("VIRTUAL_ENV", "/some/where")
    code, out, _ = run("localhost:1,x2.invalid:1", "told", export=["WANTED", "SECRET=a 'word'"])
    assert code == 0
    here, there = (each["environment"] for each in said(out).values())
    if "STAND_IN" in here:
        here, there = there, here
    for each in here, there:
        assert (each["WANTED"], each["SECRET"]) == ("two\nlines", "a 'word'")
        assert each["VIRTUAL_ENV"] == "/some/where"
        assert each["PYTHONPATH"] == os.environ["PYTHONPATH"]
    assert here["GRACE_TF_SECRET"] == there["GRACE_TF_SECRET"]
    assert len(here["GRACE_TF_SECRET"]) == 64
    assert here["PLAIN"] == "is not sent" and "PLAIN" not in there
    assert there["HOME"] == "/"
    assert there["PATH"] == os.environ["PATH"] + ":/usr/bin:/bin"
    with pytest.raises(ValueError, match="-x takes NAME=VALUE or a NAME that is set.*'UNSET_HERE'"):
        run("x2.invalid:1", "told", export=["UNSET_HERE"])


def test_nothing_of_it_stands_on_a_command_line():
    code, out, _ = run("x2.invalid:1", "told", "a word", export=["SECRET=hidden"])
    assert code == 0
    lines = said(out)[0]["lines"]
    assert len(lines) >= 2, "the far end's and the stand-in's"
    assert not [line for line in lines if "hidden" in line or "a word" in line]


def test_arguments_arrive_as_they_are():
    words = ["two words", "it's", 'a "b"', "$HOME `ls` \\ *", "a\nb", "", "ü", "-np", "%s"]
    code, out, _ = run("x2.invalid:1", "show", *words)
    assert code == 0
    assert said(out)[0][1] == words


def test_both_streams_have_prefixes():
    code, out, err = run("x2.invalid:2", "show")
    assert code == 0
    assert sorted(line[:4] for line in out) == ["[0] ", "[1] "]
    assert sorted(err) == [f"[{rank}] to stderr from {rank}" for rank in range(2)]


def test_the_first_failure_is_the_run_s():
    code, _, err = run("x2.invalid:1,x3.invalid:1", "complain")
    assert code == 3
    assert err[0] == "[1] this went wrong"
    assert err[-1] == (
        "[grace_tf] worker 1 on x3.invalid ended with exit code 3 first; its last line on stderr: "
        "this went wrong"
    )
    code, _, err = run("x2.invalid:2", "signalled")
    assert code == 137
    assert err[-1].startswith(
        "[grace_tf] worker 1 on x2.invalid ended with exit code 137 (128 + SIGKILL) first"
    )


def test_workers_are_asked_to_end_first(tmp_path):
    os.mkfifo(tmp_path / "ready")
    code, _, err = run("x2.invalid:1,x3.invalid:1", "asked", str(tmp_path / "ready"))
    assert code == 7 and "[0] asked to end" in err


def test_neither_stubborn_workers_nor_their_children_stay():
    code, out, _ = run("localhost:1,x2.invalid:2", "stubborn", linger=1)
    assert code == 9
    pids = [pid for line in out for pid in json.loads(line[4:])]
    assert len(pids) == 6 and all(gone(pid) for pid in pids)


def test_the_time_limit_ends_other_hosts_workers():
    code, out, err = run("x2.invalid:1", "wait", timeout=6)
    assert (code, err) == (124, ["[grace_tf] the time is up; ending every worker."])
    (pids,) = said(out).values()
    assert all(gone(pid) for pid in pids)


def test_a_host_that_does_not_answer_in_time():
    code, _, err = run("silent.invalid:1", "show", timeout=0.5)
    assert (code, err) == (124, ["[grace_tf] the time is up: no answer from silent.invalid."])


def test_a_host_that_cannot_be_reached():
    code, out, err = run("x2.invalid:1,gone.invalid:1", "show")
    assert (code, out) == (255, [])
    assert err == [
        "[grace_tf] cannot reach host gone.invalid: ssh: Could not resolve hostname gone.invalid: "
        "Name or service not known; ending every worker."
    ]
    code, _, err = run("x2.invalid:1", "show", ssh="no-such-ssh -v")
    assert code == 127 and "cannot reach host x2.invalid: 'no-such-ssh'" in err[0]


def test_a_host_without_what_the_run_needs():
    with mock.patch.object(local_and_ssh.sys, "executable", "/no/such/python"):
        code, _, err = run("x2.invalid:1", "show", program="/bin/true")
    assert code == 127
    assert "cannot start a worker on host x2.invalid: " in err[0] and "/no/such/python" in err[0]
    code, _, err = run("x2.invalid:1", program="no-such-command")
    assert code == 127 and err[0] == "[0] there is no command 'no-such-command' on this host."
    with mock.patch.object(local_and_ssh.os, "getcwd", return_value="/no/folder"):
        code, _, err = run("x2.invalid:1", "show")
    assert code == 126 and err[0] == "[0] there is no folder '/no/folder' on this host."


def test_a_lost_connection_ends_the_worker():
    code, out, err = run("x2.invalid:1", "lose")
    assert code == 137 and "worker 0 on x2.invalid was ended by SIGKILL" in err[-1]
    assert all(gone(pid) for pid in said(out)[0])


# Without the package's own start, which imports TensorFlow.
LAUNCH = """
import json, sys, types
package = sys.modules["grace_tf"] = types.ModuleType("grace_tf")
package.__path__ = [sys.argv[1]]
from grace_tf.cli import launcher
from grace_tf.cli.run import hosts
launcher.run([sys.argv[2], "wait"], 2, hosts.parse_hosts(sys.argv[3]), ssh=sys.argv[4])
"""


def pids_of_a_run_that_is_killed(where, ssh):
    """The processes of two workers, whose launcher was killed once they were there."""
    words = [sys.executable, "-c", LAUNCH, str(Path(ROOT) / "grace_tf"), PROGRAM, where, ssh]
    started = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    lines = [started.stdout.readline() for _ in range(2)]
    started.kill()
    started.communicate()
    return [pid for found in said(lines).values() for pid in found]


def test_a_launcher_that_is_killed_leaves_no_orphan():
    pids = pids_of_a_run_that_is_killed("x2.invalid,x3.invalid", SSH)
    assert len(pids) == 4 and all(gone(pid) for pid in pids)


def ended_by(number, where, folder, **keywords):
    """A run whose launcher gets this signal once both workers have said who they are."""
    meeting = folder / "meeting"
    os.mkfifo(meeting)
    return run(where, "end", str(os.getpid()), str(int(number)), str(meeting), **keywords)


def test_a_signal_to_the_launcher_ends_every_worker(tmp_path):
    code, out, err = ended_by(signal.SIGINT, "localhost,x3.invalid", tmp_path)
    assert code == 130 and "stopped by SIGINT" in err[-1]
    pids = [pid for found in said(out).values() for pid in found]
    assert len(pids) == 2 and all(gone(pid) for pid in pids)


@contextlib.contextmanager
def sshd(folder):
    """The command of an ssh that starts an sshd for each connection; skips a test without one."""
    server = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin")
    if server is None or not shutil.which("ssh-keygen") or not shutil.which("ssh"):
        pytest.skip("There is no sshd here; Debian's openssh-server has one.")
    for name in "host", "user":
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True
        )
    config = folder / "config"
    config.write_text(
        f"HostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nStrictModes no\n"
        "PermitRootLogin yes\nPidFile none\n"
    )
    tried = subprocess.run([server, "-t", "-f", config], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"sshd cannot run here: {tried.stderr.strip()}")
    proxy = f"ProxyCommand={server} -i -f {config}"
    known = ["-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={folder}/known"]
    yield shlex.join(["ssh", "-F", "none", "-q", "-i", f"{folder}/user", "-o", proxy, *known])


def test_a_real_sshd(tmp_path):
    with sshd(tmp_path) as words:
        me = getpass.getuser()
        where = f"{me}@127.0.0.2:1,{me}@127.0.0.3:1"
        code, out, err = run(where, "show", "it's", "two words", ssh=words)
        assert code == 0, err
        assert {rank: each[1] for rank, each in said(out).items()} == {
            0: ["it's", "two words"],
            1: ["it's", "two words"],
        }
        assert run(where, "complain", ssh=words)[0] == 3
        code, out, _ = ended_by(signal.SIGTERM, where, tmp_path, ssh=words)
        pids = [pid for found in said(out).values() for pid in found]
        assert code == 143 and len(pids) == 2 and all(gone(pid) for pid in pids)
        pids = pids_of_a_run_that_is_killed(where, words)
        assert len(pids) == 4 and all(gone(pid) for pid in pids)


def test_which_names_are_this_machine_s():
    assert all(hosts.is_this_machine(name) for name in ("localhost", "127.0.0.9", "::1"))
    assert hosts.is_this_machine(socket.gethostname())
    assert not any(hosts.is_this_machine(name) for name in ("x2.invalid", "me@127.0.0.1"))
    for address, own in ("127.0.0.1", True), ("192.0.2.1", False):
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]
        with mock.patch.object(socket, "getaddrinfo", return_value=found):
            assert hosts.is_this_machine("other.invalid") is own


def test_an_interface_is_found_by_its_address():
    assert remote_worker.interface("127.0.0.1") == "lo"
    for address in ("192.0.2.1", "no address"):
        assert remote_worker.interface(address) == ""
