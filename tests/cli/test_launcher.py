"""The launcher: what workers are given, what is shown, how a run ends."""

import argparse
import contextlib
import fcntl
import io
import json
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import unittest
from pathlib import Path
from unittest import mock

from grace_tf.cli import launcher
from grace_tf.cli.run import endings, hosts, local_and_ssh, signals

PROGRAM = str(Path(__file__).parents[1] / "programs" / "launched.py")


def run(*words, workers=2, **keywords):
    """(exit code, lines on stdout, lines on stderr) of a run of the program."""
    out, err = io.StringIO(), io.StringIO()
    keywords = {"timeout": 60, "linger": 0, **keywords}
    code = launcher.run([PROGRAM, *words], workers, stdout=out, stderr=err, **keywords)
    return code, out.getvalue().splitlines(), err.getvalue().splitlines()


def gone(pid):
    """Whether the process has ended, waiting for it a while."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 20)[0])
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def terminal(columns, seen=(b"", lambda: None)):
    """(a text stream into a terminal of 24 rows, what it has shown once the block has ended).

    `seen` is (text, what to call once the terminal shows it).
    """
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    shown = bytearray()

    def read():
        text, call = seen
        with contextlib.suppress(OSError):  # how Linux says that the other side is closed
            while chunk := os.read(master, 1 << 16):
                shown.extend(chunk)
                if text and text in shown:
                    text = call()
        os.close(master)

    reader = threading.Thread(target=read)
    reader.start()
    with open(slave, "w", encoding="utf-8") as stream:
        yield stream, shown.decode
        # Closing a terminal may drop what nobody has read yet.
        termios.tcdrain(slave)
    reader.join()


class LauncherTest(unittest.TestCase):
    def test_every_worker_is_told_its_rank_and_all_addresses(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("TF_CPP_MIN_LOG_LEVEL", None)
            code, out, err = run("show", "--flag", "two words", workers=3)
        self.assertEqual(code, 0)
        self.assertCountEqual(err, [f"[{rank}] to stderr from {rank}" for rank in range(3)])
        said = {line[:4]: json.loads(line[4:]) for line in out}
        self.assertCountEqual(said, ["[0] ", "[1] ", "[2] "])
        addresses = {tuple(config["cluster"]["worker"]) for config, _, _ in said.values()}
        self.assertEqual(len(addresses), 1)
        ports = {address.rpartition(":")[2] for address in addresses.pop()}
        self.assertEqual(len(ports), 3)
        for prefix, (config, arguments, quiet) in said.items():
            self.assertEqual(config["task"], {"type": "worker", "index": int(prefix[1])})
            self.assertEqual(arguments, ["--flag", "two words"])
            self.assertEqual(quiet, "2")

    def test_a_redrawn_line_shows_its_last_state(self):
        code, out, _ = run("redraw", workers=1)
        self.assertEqual(code, 0)
        self.assertEqual(out[-2:], ["[0] 1000/1000 done", "[0] no newline"])
        self.assertLess(len(out), 500)

    def test_a_terminal_shows_worker_0_in_place(self):
        with tempfile.TemporaryDirectory() as folder:
            fifo = Path(folder) / "seen"
            os.mkfifo(fifo)
            # Worker 0 goes on once its state is on the terminal.
            words = [PROGRAM, "bar", str(fifo)]
            with terminal(60, (b"10%", lambda: open(fifo, "w").close())) as (stream, screen):
                told = {"stdout": stream, "stderr": stream, "prefix": "auto"}
                self.assertEqual(launcher.run(words, 2, timeout=60, **told), 0)
        lines = [line.rpartition("\x1b[K")[2] for line in screen().split("\r\n")]
        self.assertCountEqual(lines, ["20%", "[1] 20%", ""])
        self.assertNotIn("[1] 10%", screen())

    def test_worker_0_is_told_the_terminal(self):
        with terminal(60) as (stream, screen), mock.patch.dict(os.environ):
            for name in ("TTY_COMPATIBLE", "COLUMNS", "LINES"):
                os.environ.pop(name, None)
            words = ["sh", "-c", "echo $TTY_COMPATIBLE/$COLUMNS/$LINES"]
            self.assertEqual(launcher.run(words, 2, stdout=stream, stderr=stream), 0)
        self.assertCountEqual(screen().split(), ["[0]", "1/56/24", "[1]", "//"])

    def test_verbose_leaves_tensorflow_s_log_level_alone(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("TF_CPP_MIN_LOG_LEVEL", None)
            _, out, _ = run("show", workers=1, verbose=True)
        self.assertIsNone(json.loads(out[0][4:])[2])

    def test_the_first_failure_is_the_run_s_and_ends_it(self):
        code, _, err = run("fail")
        self.assertEqual(code, 7)
        self.assertEqual(
            err,
            [
                "[grace_tf] worker 1 ended with exit code 7; ending the other 1.",
                "[grace_tf] worker 1 ended with exit code 7 first.",
            ],
        )

    def test_whose_fault_it_was_is_the_last_line(self):
        _, _, err = run("complain")
        self.assertEqual(err[0], "[1] this went wrong")
        self.assertEqual(
            err[-1],
            "[grace_tf] worker 1 ended with exit code 3 first; its last line on stderr: "
            "this went wrong",
        )

    def test_a_worker_that_names_another_is_not_the_first(self):
        with tempfile.TemporaryDirectory() as folder:
            fifo = Path(folder) / "pid"
            os.mkfifo(fifo)
            code, _, err = run("lay_to", str(fifo), linger=30)
        self.assertEqual(code, 130)
        self.assertIn("[grace_tf] worker 1 ended with exit code 1; ending the other 1.", err)
        self.assertEqual(
            err[-1],
            "[grace_tf] worker 0 failed first and ended with exit code 130 (128 + SIGINT); its "
            "last line on stderr: KeyboardInterrupt",
        )

    def test_whom_the_last_lines_name(self):
        def first(rank, codes, **named):
            lines = {0: "", 1: "ValueError: boom", 2: "Worker 9 went away"}
            for worker, other in named.items():
                lines[int(worker[1])] = (
                    f"RuntimeError: Worker {worker[1]} of 3 cannot go on, worker {other} failed: "
                    "RuntimeError: Worker 2 of 3 cannot go on, worker 1 failed: E; start."
                )
            return endings.failed_first(rank, codes, lines.get)

        self.assertEqual(first(0, {0: 1, 1: 1}, w0=1), 1)
        self.assertEqual(first(2, {0: 1, 1: 7, 2: 1}, w2=0, w0=1), 1)
        self.assertEqual(first(0, {0: 1}, w0=1), 0)  # the other has not ended
        self.assertEqual(first(0, {0: 1, 1: 0}, w0=1), 0)  # or without a failure
        self.assertIn(first(0, {0: 1, 1: 1}, w0=1, w1=0), (0, 1))
        self.assertEqual(first(2, {1: 1, 2: 1}), 2)

    def test_a_signal_is_128_and_its_number(self):
        code, _, err = run("signalled")
        self.assertEqual(code, 137)
        self.assertEqual(
            err,
            [
                "[grace_tf] worker 1 was ended by SIGKILL; ending the other 1.",
                "[grace_tf] worker 1 was ended by SIGKILL first.",
            ],
        )

    def test_neither_a_stubborn_worker_nor_its_children_stay(self):
        code, out, _ = run("stubborn", linger=1)
        self.assertEqual(code, 9)
        pids = [pid for line in out for pid in json.loads(line[4:])]
        self.assertEqual(len(pids), 4)
        self.assertTrue(all(gone(pid) for pid in pids))

    def test_a_signal_to_the_launcher_ends_every_worker(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.getsignal(number)
            code, _, err = run("end_launcher", str(int(number)))
            self.assertEqual(code, 128 + number)
            self.assertIn(f"stopped by {number.name}", err[-1])
            self.assertIs(signal.getsignal(number), before)

    def test_a_signal_while_the_launcher_cleans_up_changes_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(Path(folder) / "ready")
            code, _, err = run("insist", str(Path(folder) / "ready"))
        self.assertEqual((code, err[1]), (7, "[0] insisted"))

    def test_a_signal_while_a_worker_starts_waits_for_its_reaper(self):
        reached = False
        with signals.Signals() as held, self.assertRaises(signals.Stopped):
            with held.hold():
                os.kill(os.getpid(), signal.SIGTERM)
                reached = True
        self.assertTrue(reached)

    def test_workers_die_with_a_launcher_that_is_killed(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "pid"
            script = (
                "import runpy; launcher = runpy.run_path(" + repr(launcher.__file__) + "); "
                f"launcher['run']([{PROGRAM!r}, 'orphan', {str(file)!r}], 1)"
            )
            ended = subprocess.run([sys.executable, "-c", script], timeout=60)
            self.assertEqual(ended.returncode, -signal.SIGKILL)
            self.assertTrue(gone(int(file.read_text())))

    def test_the_time_limit(self):
        code, _, err = run("stubborn", workers=1, timeout=0.5)
        self.assertEqual(code, 124)
        self.assertEqual(err, ["[grace_tf] the time is up; ending every worker."])

    def test_other_commands_than_python_scripts(self):
        out = io.StringIO()
        words = ["sh", "-c", "echo $0 && exit 5", "word"]
        code = launcher.run(words, 1, stdout=out, stderr=io.StringIO())
        self.assertEqual((code, out.getvalue()), (5, "[0] word\n"))
        err = io.StringIO()
        self.assertEqual(launcher.run(["no-such-command"], 2, stderr=err), 127)
        self.assertEqual(err.getvalue(), "[grace_tf] there is no command 'no-such-command'.\n")

    def test_hosts(self):
        self.assertEqual(launcher.parse_hosts("a:2, ::1:3,b"), [("a", 2), ("::1", 3), ("b", 1)])
        for wrong in ("", "a:0", "a:x", ":2", "a:1,,b:1", "-o:1", "a b:1"):
            with self.assertRaisesRegex(ValueError, "host:slots"):
                launcher.parse_hosts(wrong)
        with self.assertRaisesRegex(ValueError, "Host 'a' is named twice"):
            run("show", hosts=[("a", 1), ("b", 1), ("a", 1)])
        with self.assertRaisesRegex(ValueError, "'localhost' and '127.0.0.1' are both this"):
            run("show", hosts=[("localhost", 1), ("127.0.0.1", 1)])
        self.assertEqual(hosts.of_workers([("a", 2), ("b", 2)], 3), ["a", "a", "b"])
        with self.assertRaisesRegex(ValueError, "2 slots, but 3 workers"):
            run("show", workers=3, hosts=[("localhost", 2)])
        with self.assertRaisesRegex(ValueError, "at least one worker"):
            run("show", workers=0)

    def test_the_command_line(self):
        parser = argparse.ArgumentParser()
        launcher.add_arguments(parser)
        args = parser.parse_args(
            [
                "-np",
                "2",
                "-H",
                "localhost:2",
                "--timeout",
                "9",
                "-x",
                "A=1",
                "-x",
                "B",
                "--link",
                "1gbit",
                "--",
                "a.py",
                "-np",
            ]
        )
        with mock.patch.object(launcher, "run", return_value=4) as started:
            self.assertEqual(launcher.main(args), 4)
        started.assert_called_once_with(
            ["a.py", "-np"],
            2,
            [("localhost", 2)],
            timeout=9.0,
            prefix="auto",
            verbose=False,
            horovod=False,
            ssh=local_and_ssh.SSH,
            export=["A=1", "B"],
            link="1gbit",
        )
        complaint = io.StringIO()
        with contextlib.redirect_stderr(complaint):
            self.assertEqual(
                launcher.main(parser.parse_args(["-np", "3", "-H", "far:2", "a.py"])), 2
            )
        self.assertIn("2 slots, but 3 workers", complaint.getvalue())


if __name__ == "__main__":
    unittest.main()
