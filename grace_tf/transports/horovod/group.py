"""Horovod's workers as a `Group`: one process a worker, and Horovod's own collectives.

A collective takes this process's buffer and a key, and runs Horovod's collective under a name made
of the key.  The user's program starts Horovod (`hvd.init()`); this module checks whether it has,
and never imports Horovod by itself.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from grace_tf.transports.group import HANDSHAKE_WORDS, Group
from grace_tf.transports.horovod import arrivals
from grace_tf.transports.horovod.engine import Engine
from grace_tf.transports.horovod.process_sets import HorovodSet, Part, parted, registered
from grace_tf.transports.lifeline import lifeline
from grace_tf.transports.lifeline.farewells import GONE
from grace_tf.transports.lifeline.lifeline import first_line
from grace_tf.transports.lifeline.secret import of_job
from grace_tf.transports.lifeline.waits import Waits

TIMEOUT = 120.0
_OF_GLOO = 30.0  # seconds, after which Gloo gives up a stopped process unless the environment says
_LATECOMERS = 3.0  # seconds in which live workers come, where one was lost before they have met
_NAMED = 8  # workers in a sentence
_LONGEST_NAME = 256  # bytes of a host's name; 253 are allowed

_current: HorovodGroup | None = None


def running() -> HorovodGroup | None:
    """The group of Horovod's workers, or of the process set that `join` was given.

    None where Horovod does not run or has one worker.  Raises RuntimeError under `hvd.elastic`, and
    where Horovod was started again with others.
    """
    global _current
    hvd = _started()
    place = None if hvd is None else _place(hvd)
    if place is None:
        # A worker of a group must not go on alone; Horovod refuses the collectives of the group.
        return _current
    if _current is None and place[1] == 1:
        return None
    if _current is None:
        _current = HorovodGroup(hvd)
    elif _current.started != place:
        raise RuntimeError(
            "Horovod was started anew: this process was worker {} of {} and is {} of {} now; start "
            "all processes again.".format(*_current.started, *place)
        )
    return _current


def _place(hvd: ModuleType) -> tuple[int, int] | None:
    """Rank and size of this process; None where Horovod has stopped in this very moment.

    It stops on a thread of its own when another worker ends.
    """
    try:
        return hvd.rank(), hvd.size()
    except ValueError:
        return None


def join(process_set: Any) -> None:
    """Makes the processes of one of Horovod's process sets the group of this process.

    Raises TypeError for what is no process set; RuntimeError where Horovod does not run or does not
    know the set, where this process is not in it, and where it has another group.
    """
    global _current
    if not hasattr(process_set, "process_set_id") or not hasattr(process_set, "ranks"):
        raise TypeError(f"process_set is an hvd.ProcessSet, not {process_set!r}.")
    hvd = _started()
    if hvd is None:
        raise RuntimeError(
            "process_set is one of Horovod's, which does not run here: call "
            "hvd.init(process_sets=[…]) before grace_tf.init(process_set=…)."
        )
    if process_set.process_set_id is None:
        raise RuntimeError(
            f"Horovod does not know the process set of {process_set.ranks}: give it to "
            "hvd.init(process_sets=[…]) or hvd.add_process_set() in every process."
        )
    if hvd.rank() not in process_set.ranks:
        raise RuntimeError(
            f"This is Horovod's process {hvd.rank()}, and the process set has {process_set.ranks}: "
            "call grace_tf.init(process_set=…) with the set that the process is in."
        )
    if _current is None:
        _current = HorovodGroup(hvd, process_set)
    elif _current.ranks != tuple(process_set.ranks):
        raise RuntimeError(
            f"This process trains with Horovod's processes {list(_current.ranks)} already, not "
            f"with {process_set.ranks}: a process joins one group, once, so call "
            "grace_tf.init(process_set=…) right after hvd.init()."
        )


def _store() -> tuple[str, str]:
    """Host and port of the store of Horovod's launcher; empty where there is none."""
    names = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"
    host, port = (os.environ.get(name, "") for name in names)
    return host, port


def _started() -> ModuleType | None:
    """The user's Horovod where it runs.  Raises RuntimeError under `hvd.elastic`."""
    hvd = sys.modules.get("horovod.tensorflow")
    started = getattr(hvd, "is_initialized", None)
    if started is None or not started():
        return None
    if os.environ.get("HOROVOD_ELASTIC") == "1":
        raise RuntimeError(
            "hvd.elastic changes the number of workers while they train, and grace_tf's state is "
            "made for one number: start horovodrun without --min-np and --host-discovery-script."
        )
    return hvd


class HorovodGroup(HorovodSet, Group):
    """All workers that Horovod runs, or the workers of one process set, numbered within it.

    Making the group does not communicate; the first handshake connects the lifeline.  Waiting for
    another worker ends after `timeout` seconds, and for a stopped one also after the 30 seconds of
    HOROVOD_GLOO_TIMEOUT_SECONDS.  Horovod is then shut down; where its shutdown hangs, the process
    ends with the error message.

    Collectives are named by their keys, so several may run at once, and each waits only for the
    same name on other workers.  Horovod may fuse small ones; with three workers or more, sums may
    then differ in the last bits from run to run, though never between workers.

    Bytes a worker sends for n bytes handed over, N workers, over Gloo: sum, max 2 n (N - 1) / N;
    gather n (N - 1); all_to_all n (N - 1) / N.  Buffers pass through the host's memory.
    """

    def __init__(self, hvd: ModuleType, process_set: Any = None, timeout: float = TIMEOUT) -> None:
        ranks = range(hvd.size()) if process_set is None else process_set.ranks
        super().__init__(hvd, ranks, process_set)
        (self.rank,) = self.workers
        # Counted among all of Horovod's processes, so that no two of a host take the same GPU.
        self.local_rank = hvd.local_rank()
        self.timeout = float(timeout)
        self.started = hvd.rank(), hvd.size()
        self._met, self._secret = False, None
        self._missed: str | None = None  # why the workers did not meet
        self._engine = Engine(hvd)
        self._waits: Waits | None = None
        self._parts = 0  # the number of calls of `part`

    def begin(self, timeout: float | None, secret: str | None = None) -> None:
        """Waits for the others, once; `timeout` then holds for every wait.

        `secret` is that of the job, for the lifeline; None for what the environment gives.
        """
        if self._met:
            if timeout in (None, self.timeout):
                return
            raise RuntimeError(
                f"The workers have met with timeout={self.timeout:g} already, so it cannot become "
                f"{timeout:g}: call grace_tf.init() right after hvd.init()."
            )
        self.timeout = self.timeout if timeout is None else float(timeout)
        self._secret = secret
        self.handshake([], "init()")

    def connect(self) -> None:
        """See `Group.connect`."""
        self._meet()

    @functools.cached_property
    def hosts(self) -> tuple[str, ...]:
        """See `Group.hosts`; all workers must make the first call together."""
        name = (os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname()).encode()
        words = np.frombuffer(name[:_LONGEST_NAME].ljust(_LONGEST_NAME, b"\0"), np.int64)
        table = self.handshake(words, "hosts")
        return tuple(row.tobytes().rstrip(b"\0").decode(errors="replace") for row in table)

    def part(self, ranks: Sequence[int]) -> Part:
        """See `Group.part`; `ranks` must ascend.

        Raises:
          ValueError: what cannot be a part.
          RuntimeError: on every worker, where the parts do not fit together; where Horovod lacks
            the process sets and takes no new ones; where a worker is gone or late.
        """
        parts = parted(self, ranks)
        self._parts += 1
        sets: dict[int, Any] = {}  # by the first worker
        try:
            for part in parts:  # all of Horovod's processes must register a set together
                if 1 < len(part) < self.size:
                    among = [self.ranks[worker] for worker in part]
                    sets[part[0]] = self._patiently(
                        lambda among=among: registered(self._hvd, among, self._has_all)
                    )
        except RuntimeError:
            self.barrier()  # so that all raise the error before one of them shuts Horovod down
            raise
        (mine,) = (part for part in parts if self.rank in part)
        everyone = self._among.get("process_set") if len(mine) == self.size else None
        process_set = sets.get(mine[0], everyone)
        return Part(self, self._parts, [self.ranks[worker] for worker in mine], process_set)

    # Group

    def _around(
        self, mark: tf.Variable, buffer: tf.Tensor, collective: Callable[[], tf.Tensor]
    ) -> tf.Tensor:
        self._meet()
        if self.lifeline is not None:  # Horovod's own error does not say why it was shut down
            self.lifeline.check()
        return self._waits.around(mark, [buffer], collective)

    def _handshake(self, words: np.ndarray) -> np.ndarray:
        self._meet()
        return words[None] if self.size == 1 else self._everyones(words)

    def _broadcast(self, piece: np.ndarray, root: int) -> np.ndarray:
        sent, first = tf.constant(piece), self.ranks[root]
        broadcast = self._hvd.broadcast
        return self._patiently(lambda: broadcast(sent, first, **self._among)).numpy()

    def _everyones(self, words: np.ndarray) -> np.ndarray:
        sent, allgather = tf.constant(words[None]), self._hvd.allgather
        return self._patiently(lambda: allgather(sent, **self._among)).numpy()

    def _explain(self, error: Exception) -> str | None:
        if not self._engine.may_have_failed(error):
            return None
        known = self.lifeline and self.lifeline.why(error)
        if known or not self._engine.lost_a_peer(error):
            return known
        who = "another worker" if self._has_all else "a process of this or another process set"
        return self._cannot(f"{who} is gone ({first_line(error)})")

    @property
    def _has_all(self) -> bool:
        return self.size == self.started[1]

    def _cannot(self, what: str) -> str:
        return f"Worker {self.rank} of {self.size} cannot go on, {what}; start all of them again."

    def _meet(self) -> None:
        """Connects the lifeline, in the first call that all workers make together."""
        if self._met:
            return
        if self._missed is not None:
            raise RuntimeError(self._missed)
        # Python runs the last registered function first: the lifeline ends before Horovod.
        self._engine.end_with_the_process(after_all=not self._has_all)
        lifeline.watch_the_end()
        if self.size == 1:
            self._met = True
            return
        server, port, token = None, 0, 0
        if self.rank == 0:
            server, port, token = lifeline.offer(self._host(), self._on_one_host())
        mine = np.zeros([HANDSHAKE_WORDS], np.int64)
        mine[:2], name = (port, token), self._host().encode()[: 8 * (HANDSHAKE_WORDS - 2)]
        mine[2:].view(np.uint8)[: len(name)] = np.frombuffer(name, np.uint8)
        arrivals.note(_store(), self.ranks[self.rank])
        began = time.monotonic()
        try:
            with tf.init_scope():
                words = self._everyones(mine)[0]
        except (RuntimeError, tf.errors.OpError) as error:
            late = isinstance(error, RuntimeError)
            if not late and not self._engine.lost_a_peer(error):
                raise
            self._missed = self._not_met(late, time.monotonic() - began)
            raise RuntimeError(self._missed) from (None if late else error)
        first = words[2:].tobytes().rstrip(b"\0").decode(), int(words[0]), int(words[1])
        self.lifeline = lifeline.begin(
            *(self.rank, self.size, self.timeout),
            **dict(secret=of_job(self._secret), token=token, server=server),
            **dict(find=lambda: first, engine=self._engine),
        )
        lifeline.join(self.lifeline)
        self._waits = Waits(self.lifeline, self.timeout)
        self._met = True

    def _not_met(self, late: bool, seconds: float) -> str:
        """Why the workers have not met, which Horovod has told after so many seconds."""
        missing = arrivals.missing(_store(), self.ranks, 0.0 if late else _LATECOMERS)
        workers = [self.ranks.index(rank) for rank in missing]
        if self.size == 2:
            workers = [1 - self.rank]
        who = " or ".join(f"worker {worker}" for worker in workers[:_NAMED]) or "another worker"
        of_gloo = float(os.environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS") or _OF_GLOO)
        if late or seconds >= min(self.timeout, 0.9 * of_gloo):
            return self._cannot(f"{who} did not take part within {seconds:.0f} s")
        return self._cannot(f"{who} {GONE}, before all workers had met")

    def _host(self) -> str:
        """The name by which workers on other hosts find this one."""
        name = os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname()
        here = name == "localhost" or name.startswith("127.")
        return socket.gethostname() if here and not self._on_one_host() else name

    def _on_one_host(self) -> bool:
        return self._hvd.local_size() == self._hvd.size()

    def _patiently(self, collective: Callable[[], Any]) -> Any:
        """The result of an eager collective, with a timeout, which Horovod itself lacks."""
        found: list = []

        def run() -> None:
            try:
                with tf.device("/CPU:0"):
                    found.append(collective())
            except Exception as error:  # raised again in the waiting thread
                found.append(error)

        thread = threading.Thread(target=run, name="grace_tf handshake", daemon=True)
        with contextlib.nullcontext() if self._waits is None else self._waits.unmarked():
            thread.start()
            thread.join(self.timeout)
        if not found:
            if self._waits is not None:
                self._waits.end()
                self.lifeline.check()
            late = f"another worker did not take part within {self.timeout:g} s"
            raise RuntimeError(self._cannot(late))
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]
