"""`python -m grace_tf run -np N script.py`: starts the worker processes here and on other hosts,
shows their output, and ends them together.

Every worker gets a TF_CONFIG that names all workers; `grace_tf.init()` (or
`MultiWorkerMirroredStrategy`) reads it.  On this machine it gets the parent's environment too.  A
worker that fails ends the run: the others are stopped and the run returns the exit code of the one
that failed first.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import TextIO

from grace_tf.cli.run.addresses import environments, exported
from grace_tf.cli.run.endings import ending, failed_first
from grace_tf.cli.run.hosts import is_this_machine, of_workers, parse_hosts
from grace_tf.cli.run.link.network import CannotEmulate, network, wanted_link
from grace_tf.cli.run.local_and_ssh import SSH, CannotReach, Local, Place, Remote, wait_for_all
from grace_tf.cli.run.remote_worker import CANNOT_START, NOT_FOUND, signal_all
from grace_tf.cli.run.screen import PREFIXES, Screen
from grace_tf.cli.run.signals import Signals, Stopped

TIMED_OUT = 124  # as coreutils' timeout(1)
_AT_ONCE = 8  # connections opened at the same time; sshd allows 10 (MaxStartups)


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
    ssh: str = SSH,
    export: Sequence[str] = (),
    link: str | None = None,
) -> int:
    """Runs `command` in `workers` processes on the hosts and returns the run's exit code.

    A command whose first word ends in `.py` runs under this Python, unbuffered.  Lines of output
    begin with `[rank] `; with the prefix "auto" not worker 0's lines, with "never" none.
    TensorFlow's start-up lines need `verbose`.  With `horovod`, `hvd.init()` finds the workers.

    `hosts` are (name, slots), filled in order; without them all workers are on this machine.  The
    command `ssh` reaches other hosts; workers there run in the folder of the same name, with the
    Python of the same path.  `export` has "NAME" or "NAME=VALUE" for every worker.  With `link`,
    such as "1gbit,20ms", workers of this machine exchange over emulated links (link/network.py).

    The code is 0 if every worker returned 0, else the code of the first that failed (128 + n for
    signal n); the others then have `linger` seconds to end by themselves, get SIGTERM, and 5 s
    later SIGKILL.  124 after `timeout` seconds, 127 if there is no such command, 128 + n if signal
    n (SIGINT, SIGTERM) ended the launcher, 255 if ssh cannot reach a host, 1 if links cannot be
    emulated.  No process that a worker started survives.  Raises ValueError for a wrong argument.
    """
    names, words = of_workers(hosts, workers), _words(command)
    given, wanted = exported(export), wanted_link(link, workers, hosts)
    screen = Screen(stdout or sys.stdout, stderr or sys.stderr, prefix, verbose)
    crew = _Crew(screen, None if timeout is None else time.monotonic() + timeout)
    with Signals() as signals, contextlib.ExitStack() as held:
        try:
            crew.find_places(names, shlex.split(ssh), signals)
            linked = wanted and held.enter_context(network(wanted, crew.places, horovod, crew.say))
            meeting = environments(crew.places, verbose, horovod, given, linked)
            crew.start(words, held.enter_context(meeting), signals)
            return crew.wait(linger)
        except (CannotReach, CannotEmulate, OSError, Stopped) as error:
            return crew.refuse(*_refusal(error, words))
        finally:
            signals.ignore()
            crew.stop()
            crew.blame()


def _refusal(error: Exception, words: list[str]) -> tuple[str, int]:
    """The sentence and the exit code for an error that ends a run; raises all other errors."""
    if isinstance(error, CannotReach):
        return f"{error}; ending every worker.", error.code
    if isinstance(error, CannotEmulate):
        return f"{error}.", 1
    if isinstance(error, TimeoutError):
        return f"the time is up: {error}.", TIMED_OUT
    if isinstance(error, FileNotFoundError):
        return f"there is no command {words[0]!r}.", NOT_FOUND
    if isinstance(error, PermissionError):
        return f"{words[0]!r} cannot be executed.", CANNOT_START
    if isinstance(error, Stopped):
        name = signal.Signals(error.number).name
        return f"stopped by {name}; ending every worker.", 128 + error.number
    raise error


def _words(command: Sequence[str]) -> list[str]:
    if not command:
        raise ValueError("A run needs a command, such as: train.py --epochs 3.")
    python = [sys.executable, "-u"] if command[0].endswith(".py") else []
    return [*python, *command]


class _Crew:
    """The worker processes of one run and the threads that read what they print.

    Attributes: places, one for each worker, where it runs.
    """

    def __init__(self, screen: Screen, deadline: float | None):
        self.places: list[Place] = []
        self._screen = screen
        self._deadline = deadline
        self._ended: queue.Queue[tuple[int, int]] = queue.Queue()
        self._running: dict[int, Place] = {}
        self._threads: list[threading.Thread] = []
        self._readers: dict[int, threading.Thread] = {}  # of each worker's stderr
        self._fault: tuple[int, int, str] | None = None  # (rank that failed first, code, words)

    def find_places(self, hosts: Sequence[str], ssh: Sequence[str], signals: Signals) -> None:
        """One place on each of `hosts`; raises CannotReach, and TimeoutError at the deadline."""
        local = {host for host in set(hosts) if is_this_machine(host)}
        for first in range(0, len(hosts), _AT_ONCE):
            for host in hosts[first : first + _AT_ONCE]:
                with signals.hold():
                    self.places.append(Local(host) if host in local else Remote(host, ssh))
            wait_for_all([p for p in self.places[first:] if not p.here], self._deadline)

    def start(
        self, words: list[str], environments: Sequence[dict[str, str]], signals: Signals
    ) -> None:
        """Starts a worker at each place, with its environment."""
        for rank, (place, environment) in enumerate(zip(self.places, environments)):
            with signals.hold():
                process = place.start(words, {**self._screen.environment(rank), **environment})
                self._running[rank] = place
                self._thread(self._screen.follow, rank, process.stdout, False)
                self._readers[rank] = self._thread(self._screen.follow, rank, process.stderr, True)
                self._thread(self._reap, rank, process)

    def wait(self, linger: float) -> int:
        """Waits until all have ended, one has failed (its code) or the deadline is over (124)."""
        while self._running:
            ended = self._next(self._deadline)
            if ended is None:
                self.say("the time is up; ending every worker.")
                return TIMED_OUT
            rank, code = ended
            if code:
                code = self._linger(rank, code, linger)
                return code if code > 0 else 128 - code
        return 0

    def stop(self) -> None:
        """Ends the running workers (SIGTERM, SIGKILL after 5 s) and prints the last lines."""
        for place in self.places[len(self._readers) :]:
            place.close()  # no worker has started there
        kill = signal.SIGKILL  # of a remote worker the first kills its far end, the second ssh here
        for number, patience in ((signal.SIGTERM, 5.0), (kill, 5.0), (kill, None)):
            for place in self._running.values():
                place.signal(number)
            deadline = None if patience is None else time.monotonic() + patience
            while self._running and self._next(deadline) is not None:
                continue
        for thread in self._threads:
            thread.join()

    def blame(self) -> None:
        """Prints, below all output, which worker failed first, with its last line on stderr."""
        if self._fault is not None:
            rank, code, how = self._fault
            # A worker that a signal ended could not print a reason.
            last = self._screen.last.get(rank) if code > 0 else None
            words = "." if last is None else f"; its last line on stderr: {last}"
            self.say(f"{self._name(rank)} {how}{words}")

    def say(self, sentence: str) -> None:
        self._screen.say(sentence)

    def refuse(self, sentence: str, code: int) -> int:
        self.say(sentence)
        return code

    def _linger(self, rank: int, code: int, seconds: float) -> int:
        """Lets the others end by themselves; returns the code of the worker that failed first."""
        self._fault = rank, code, f"{ending(code)} first"
        others = f"; ending the other {len(self._running)}" if self._running else ""
        self._last_line(rank)  # so that its output comes before the launcher's message
        self.say(f"{self._name(rank)} {ending(code)}{others}.")
        deadline, codes = time.monotonic() + seconds, {rank: code}
        while self._running and (ended := self._next(deadline)) is not None:
            codes.update([ended])
        if (first := failed_first(rank, codes, self._last_line)) != rank:
            self._fault = first, codes[first], f"failed first and {ending(codes[first])}"
        return codes[first]

    def _last_line(self, rank: int) -> str:
        self._readers[rank].join(2.0)  # seconds to read the rest of its output
        return self._screen.last.get(rank, "")

    def _next(self, deadline: float | None) -> tuple[int, int] | None:
        """The next worker to end, as (rank, return code); None if the deadline comes first."""
        try:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            rank, code = self._ended.get(timeout=left)
        except queue.Empty:
            return None
        self._running.pop(rank).close()
        return rank, code

    def _name(self, rank: int) -> str:
        return f"worker {rank}{self.places[rank].on}"

    def _thread(self, target, *args) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def _reap(self, rank: int, process: subprocess.Popen) -> None:
        # Not reaped yet, the process still owns its number, so no other process gets the signal.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        signal_all(process.pid, signal.SIGKILL)
        self._ended.put((rank, process.wait()))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `run`: -np N [options] [--] script.py args…"""
    parser.add_argument("-np", "--workers", type=int, required=True, help="number of workers")
    parser.add_argument("-H", "--hosts", help="host:slots,… to be filled in order (this machine)")
    parser.add_argument(
        "--ssh", default=SSH, metavar="COMMAND", help="how other hosts are reached (%(default)s)"
    )
    parser.add_argument(
        "-x",
        "--export",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="an environment variable for every worker, as often as needed",
    )
    parser.add_argument(
        "--link",
        metavar="RATE[,LATENCY]",
        help="let workers of this machine exchange over emulated links, each worker and direction "
        "its own, such as 100mbit or 1gbit,20ms (kbit, mbit, gbit; us, ms, s)",
    )
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
        names = "timeout", "prefix", "verbose", "horovod", "ssh", "export", "link"
        return run(command, args.workers, hosts, **{name: getattr(args, name) for name in names})
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
