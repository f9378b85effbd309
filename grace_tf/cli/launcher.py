"""`python -m grace_tf run -np N script.py`: starts the worker processes, shows what they print,
ends them together.

Every worker gets the parent's environment and a TF_CONFIG that names all workers; `grace_tf.init()`
(or `MultiWorkerMirroredStrategy`) reads it.  A worker that fails ends the run: the others are
stopped and the run returns the exit code of the one that failed first.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TextIO

from grace_tf.cli.addresses import environments
from grace_tf.cli.endings import ending, failed_first
from grace_tf.cli.hosts import check_hosts, parse_hosts
from grace_tf.cli.screen import PREFIXES, Screen

TIMED_OUT = 124  # as coreutils' timeout(1)
NOT_FOUND = 127  # as sh(1)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class _Stopped(Exception):
    """A signal asked the launcher itself to end."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


def run(
    command: Sequence[str],
    workers: int,
    hosts: Sequence[tuple[str, int]] | None = None,
    *,
    timeout: float | None = None,
    linger: float = 5.0,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    prefix: str = "always",
    verbose: bool = False,
    horovod: bool = False,
) -> int:
    """Runs `command` in `workers` processes on this machine and returns the run's exit code.

    A command whose first word ends in `.py` runs under this Python, unbuffered.  `[rank] ` stands
    in front of each line, with the prefix "auto" not of worker 0's, with "never" of none.
    TensorFlow's start-up lines need `verbose`.  With `horovod`, `hvd.init()` finds the workers.

    The code is 0 if every worker returned 0, else that of the first that failed (128 + n for signal
    n); then the others have `linger` seconds to end by themselves, get SIGTERM, and 5 s later
    SIGKILL.  124 after `timeout` seconds, 127 if there is no such command, 128 + n if signal n
    (SIGINT, SIGTERM) ended the launcher.  No process that a worker started is left behind.

    Raises ValueError for a wrong argument, and where `horovod` is set and Horovod is missing.
    """
    check_hosts(hosts, workers)
    words = _words(command)
    screen = Screen(stdout or sys.stdout, stderr or sys.stderr, prefix, verbose)
    crew = _Crew(screen)
    deadline = None if timeout is None else time.monotonic() + timeout
    with environments(workers, verbose, horovod) as of_workers, _Signals() as signals:
        try:
            for rank, environment in enumerate(of_workers):
                with signals.hold():
                    crew.start(rank, words, {**screen.environment(rank), **environment})
            return crew.wait(deadline, linger)
        except FileNotFoundError:
            crew.say(f"there is no command {words[0]!r}.")
            return NOT_FOUND
        except PermissionError:
            crew.say(f"{words[0]!r} cannot be executed.")
            return NOT_FOUND - 1
        except _Stopped as stopped:
            crew.say(f"stopped by {signal.Signals(stopped.number).name}; ending every worker.")
            return 128 + stopped.number
        finally:
            crew.stop()
            crew.blame()


def _words(command: Sequence[str]) -> list[str]:
    if not command:
        raise ValueError("A run needs a command, such as: train.py --epochs 3.")
    python = [sys.executable, "-u"] if command[0].endswith(".py") else []
    return [*python, *command]


class _Crew:
    """The worker processes of one run and the threads that read what they print."""

    def __init__(self, screen: Screen):
        self._screen = screen
        self._ended: queue.Queue[tuple[int, int]] = queue.Queue()
        self._processes: dict[int, subprocess.Popen] = {}
        self._threads: list[threading.Thread] = []
        self._readers: dict[int, threading.Thread] = {}  # of each worker's stderr
        self._fault: tuple[int, int, str] | None = None  # who failed first, its code, in words

    def start(self, rank: int, words: list[str], environment: dict[str, str]) -> None:
        process = subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A session of its own, so that one signal reaches whatever the worker starts.
            start_new_session=True,
            preexec_fn=_end_with(os.getpid()),
        )
        self._processes[rank] = process
        self._thread(self._screen.follow, rank, process.stdout, False)
        self._readers[rank] = self._thread(self._screen.follow, rank, process.stderr, True)
        self._thread(self._reap, rank, process)

    def wait(self, deadline: float | None, linger: float) -> int:
        """Until all have ended, one has failed (its code) or the deadline has passed (124)."""
        while self._processes:
            ended = self._next(deadline)
            if ended is None:
                self.say("the time is up; ending every worker.")
                return TIMED_OUT
            rank, code = ended
            if code:
                code = self._linger(rank, code, linger)
                return code if code > 0 else 128 - code
        return 0

    def stop(self) -> None:
        """Ends whatever still runs (SIGTERM, SIGKILL after 5 s) and prints the last lines."""
        for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, None)):
            for process in self._processes.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            deadline = None if patience is None else time.monotonic() + patience
            while self._processes and self._next(deadline) is not None:
                continue
        for thread in self._threads:
            thread.join()

    def blame(self) -> None:
        """Repeats, below all that was printed, whose fault it was: its own last words."""
        if self._fault is not None:
            rank, code, how = self._fault
            # What a signal has ended could say nothing of it.
            last = self._screen.last.get(rank) if code > 0 else None
            words = "." if last is None else f"; its last line on stderr: {last}"
            self.say(f"worker {rank} {how}{words}")

    def say(self, sentence: str) -> None:
        self._screen.say(sentence)

    def _linger(self, rank: int, code: int, seconds: float) -> int:
        """Lets the others end by themselves; returns the return code of who failed first."""
        self._fault = rank, code, f"{ending(code)} first"
        others = f"; ending the other {len(self._processes)}" if self._processes else ""
        self._last_line(rank)  # what it has written comes before what is said of it
        self.say(f"worker {rank} {ending(code)}{others}.")
        deadline, codes = time.monotonic() + seconds, {rank: code}
        while self._processes and (ended := self._next(deadline)) is not None:
            codes.update([ended])
        if (first := failed_first(rank, codes, self._last_line)) != rank:
            self._fault = first, codes[first], f"failed first and {ending(codes[first])}"
        return codes[first]

    def _last_line(self, rank: int) -> str:
        self._readers[rank].join(2.0)  # seconds for what it has written to be read
        return self._screen.last.get(rank, "")

    def _next(self, deadline: float | None) -> tuple[int, int] | None:
        """The next worker to end, as (rank, return code); None if the deadline comes first."""
        try:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            rank, code = self._ended.get(timeout=left)
        except queue.Empty:
            return None
        del self._processes[rank]
        return rank, code

    def _thread(self, target, *args) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def _reap(self, rank: int, process: subprocess.Popen) -> None:
        # Not reaped yet, the process still owns its number, so the signal cannot hit a stranger.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        self._ended.put((rank, process.wait()))


def _end_with(parent: int):
    """What a child runs before its program: the kernel kills it when the launcher dies."""
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def before_exec() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before the line above
                os._exit(1)

    return before_exec


class _Signals:
    """Within it SIGINT and SIGTERM raise _Stopped, the first time; only the main thread may say so.

    Within `hold` they wait for its end: a worker whose start was cut in two would have no reaper.
    """

    def __enter__(self) -> _Signals:
        self._held, self._pending, self._before = False, None, {}
        if threading.current_thread() is threading.main_thread():
            for each in (signal.SIGINT, signal.SIGTERM):
                self._before[each] = signal.signal(each, self._stop)
        return self

    def __exit__(self, *error: object) -> None:
        for each in self._before:
            signal.signal(each, self._before[each])

    def _stop(self, number: int, frame: object) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)  # the clean-up that follows is bounded by itself
        if not self._held:
            raise _Stopped(number)
        self._pending = number

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        self._held = True
        yield  # a start that fails ends the run: no signal is needed any more
        self._held = False
        if self._pending is not None:
            raise _Stopped(self._pending)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `run`: -np N [options] [--] script.py args…"""
    parser.add_argument("-np", "--workers", type=int, required=True, help="number of workers")
    parser.add_argument("-H", "--hosts", help="host:slots,… (this machine only, for now)")
    parser.add_argument(
        "--timeout", type=float, help="end the run after this many seconds (exit 124)"
    )
    parser.add_argument(
        "--prefix",
        choices=PREFIXES,
        default="auto",
        help="the rank in front of each line; auto: of all workers but 0, so that a line without "
        "a rank is worker 0's",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="show TensorFlow's start-up and information lines"
    )
    parser.add_argument("--horovod", action="store_true", help="let hvd.init() find the others")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="script.py or any command, and its arguments"
    )


def main(args: argparse.Namespace) -> int:
    """Runs what `add_arguments` parsed; a wrong argument is one sentence and exit code 2."""
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    try:
        hosts = parse_hosts(args.hosts) if args.hosts else None
        given = {name: getattr(args, name) for name in ("timeout", "prefix", "verbose", "horovod")}
        return run(command, args.workers, hosts, **given)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
