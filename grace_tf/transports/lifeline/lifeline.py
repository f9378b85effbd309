"""The lifeline of this process: makes it, and says goodbye on it when the process ends.

A group or a strategy has one `Lifeline` (connections.py) in a process.  A process that ends tells
the others how: by an uncaught exception, or at the end of its program.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import functools
import json
import logging
import os
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from grace_tf.transports.lifeline.connections import Lifeline
from grace_tf.transports.lifeline.secret import of_job
from grace_tf.transports.lifeline.sockets import listen, on_one_machine

PATIENCE = 120.0  # seconds, where a strategy's communication options have no timeout
_LEAST_PATIENCE = 10.0  # seconds that a process may be busy with tracing, and is not dead
_KEY = "grace/lifeline"  # in the coordination service's store: worker 0's port and token

_JOINING = 10.0  # seconds for the connections, once all workers are there
_SLICE = 0.5  # seconds between two checks of the others' messages
_MOST_OF_A_LINE = 1000  # characters of an error that the others are told

_current: Lifeline | None = None
_plain: dict[int, list[str]] = collections.defaultdict(list)  # by worker: unwrapped optimizers
_announced: weakref.WeakSet = weakref.WeakSet()  # the unwrapped optimizers of this process
_counter: tf.Variable | None = None  # of the committed steps; see count_by
_goodbyes: list[tuple[Callable[[], None], Callable[[], str | None]]] = []  # see at_goodbye
_failing = 0  # the exit code, where an uncaught exception is ending this process


def current() -> Lifeline | None:
    """The lifeline of this process, or None."""
    return _current


def sentence(error: BaseException) -> str | None:
    """One sentence for an error that a lost worker has caused; None for other errors."""
    return None if _current is None else _current.why(error)


def offer(host: str = "", here: bool = False) -> tuple[Any, int, int]:
    """Worker 0's side of the lifeline before the others connect: (server, port, token).

    It listens at `host`, the name or address by which the others find it; `here` says that all of
    them are on this machine.  See `sockets.listen`.
    """
    server = listen(0, host, here)
    return server, server.getsockname()[1], secrets.randbits(62)


def begin(rank: int, size: int, patience: float, **where: Any) -> Lifeline:
    """Makes the lifeline of this process; the keywords are those of `Lifeline`."""
    global _current
    if _current is None:
        _current = Lifeline(rank, size, max(patience, _LEAST_PATIENCE), **where)
        _current.on("plain", lambda worker, name: _plain[worker].append(name))
        watch_the_end()
    return _current


def join(line: Lifeline) -> None:
    """Waits for all connections once the workers have met; warns once if some are missing."""
    if line.warned or line.joined(min(line.patience, _JOINING)):
        return
    line.warned = True
    logging.getLogger("grace_tf").warning(
        "Worker %d of %d has no connection beside the collectives': it learns only by timeouts why "
        "another worker is gone, and weights are not compared as training goes on. Let workers "
        "reach each other at any port.",
        *(line.rank, line.size),
    )


def spans_processes(strategy: tf.distribute.Strategy) -> bool:
    """Whether some of the strategy's replicas live in other processes."""
    count = strategy.num_replicas_in_sync  # with one, the default strategy names no devices
    return count > 1 and count > len(strategy.extended.worker_devices)


def between_strategy_processes(strategy: tf.distribute.Strategy) -> Lifeline | None:
    """The lifeline between the processes of a strategy; None for a strategy within one process.

    It does not wait; the connections are complete when all processes have called it.
    """
    extended = strategy.extended
    if not hasattr(extended, "_id_in_cluster") or not spans_processes(strategy):
        return None
    if _current is not None:
        return _current
    rank, size = extended._id_in_cluster, extended._num_workers  # no public names for them
    patience = extended._communication_options.timeout_seconds or PATIENCE
    cluster = strategy.cluster_resolver.cluster_spec().as_dict()
    addresses = [*cluster.get("chief", ()), *cluster.get("worker", ())]
    hosts = [address.rpartition(":")[0] for address in addresses]
    if rank == 0:
        server, port, token = offer(hosts[0], on_one_machine(hosts))
        with contextlib.suppress(tf.errors.OpError):  # the key exists: of an earlier lifeline
            context.context().set_config_key_value(_KEY, json.dumps([port, token]))
        return begin(rank, size, patience, secret=of_job(), token=token, server=server)

    def find() -> tuple[str, int, int]:
        stored = context.context().get_config_key_value(_KEY, round(1000 * patience))
        return hosts[0].strip("[]"), *json.loads(stored)

    return begin(rank, size, patience, secret=of_job(), find=find)


def begin_in_scopes() -> None:
    """Starts the lifeline between the processes of a strategy where its scope is entered.

    Making variables there communicates already, before grace_tf is called.
    """
    cls = tf.distribute.MultiWorkerMirroredStrategy
    original = cls.scope

    @functools.wraps(original)
    def scope(self):
        between_strategy_processes(self)
        return original(self)

    cls.scope = scope


def value_of(key: str, worker: int, seconds: float) -> str:
    """The value that a worker of a strategy puts under a key of the coordination service's store.

    Raises RuntimeError as soon as this worker cannot go on, or the other's optimizer turns out not
    to be wrapped; tf.errors.OpError after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        try:
            slice_ = round(1000 * min(_SLICE, max(left, 1e-3)))
            return context.context().get_config_key_value(key, slice_)
        except tf.errors.OpError as error:
            if _current is not None:
                if len(_plain[worker]) > len(_plain[_current.rank]):
                    raise RuntimeError(
                        f"Worker {worker} of {_current.size} does not compress: its "
                        f"{_plain[worker][-1]} is not wrapped, as worker {_current.rank}'s is; "
                        "call grace_tf.wrap() on every worker."
                    ) from None
                _current.check()
            if left <= _SLICE or not isinstance(error, tf.errors.DeadlineExceededError):
                raise


def put(key: str, value: str, seconds: float) -> None:
    """Puts a value under a key of the coordination service's store, which is worker 0's.

    TensorFlow waits for worker 0 forever, so it runs in a thread.  Raises RuntimeError as soon as
    this worker cannot go on; tf.errors.OpError after `seconds`, or where the store refuses.
    """
    line, done = _current, []

    def run() -> None:
        try:
            context.context().set_config_key_value(key, value)
            done.append(None)
        except tf.errors.OpError as error:
            done.append(error)
        with line.changed:
            line.changed.notify_all()

    threading.Thread(target=run, name="grace_tf put", daemon=True).start()
    line.until(lambda: bool(done), seconds)
    if not done:
        line.check()
        raise tf.errors.DeadlineExceededError(None, None, f"worker 0 is silent for {seconds:g} s")
    if done[0] is not None:
        raise done[0]


def exit_code() -> int:
    """The exit code of this process: not 0 where an uncaught exception ends it."""
    return _failing


def tell_plain(strategy: tf.distribute.Strategy, optimizer: Any) -> None:
    """Tells the other processes of a strategy that a plain optimizer has begun to train here.

    All workers use the same optimizers in the same order.  So where one worker waits for the first
    step of a wrapped optimizer, and another has begun more plain ones, the wait is in vain.
    """
    line = between_strategy_processes(strategy)
    if line is not None and optimizer not in _announced:
        _announced.add(optimizer)
        name = type(optimizer).__name__
        _plain[line.rank].append(name)
        line.tell("plain", name)


def count_by(variable: tf.Variable) -> None:
    """Sets the variable that counts committed steps, for this process's goodbye.

    It belongs to the optimizer or Aggregator that has begun to train last.  It is referenced
    strongly, since that object may be deleted when the variable is read, once, at the end.
    """
    global _counter
    if _current is not None:
        _counter = variable


def at_goodbye(before: Callable[[], None], after: Callable[[], str | None]) -> None:
    """Calls these once, around the goodbye of a process that ends without an error.

    `before` may send messages; an exception of it is ignored.  `after` is called when worker 0 has
    waited for the others' end.  Where it returns a sentence, the process prints it and fails.
    """
    if (before, after) not in _goodbyes:
        _goodbyes.append((before, after))


def _say_goodbye() -> None:
    global _failing
    line = _current
    if line is None:
        return
    calls = [] if _failing or line.broken is not None else _goodbyes
    for before, _ in calls:
        with contextlib.suppress(Exception):  # such as of a lost device
            before()
    line.close(_failing > 0, _steps())
    for text in filter(None, [after() for _, after in calls]):
        _failing = 1
        print(text, file=sys.stderr, flush=True)


def _steps() -> int | None:
    """The number of steps that this process has committed; None where that is not known."""
    try:
        return None if _counter is None else int(_counter.numpy())
    except Exception:  # such as of a lost device: the goodbye is sent all the same
        return None


@functools.cache
def watch_the_end() -> None:
    """Notes whether an uncaught exception ends this process, and says goodbye at its end."""
    before = sys.excepthook

    def hook(kind, error, trace):
        global _failing
        if hasattr(sys, "ps1") or threading.current_thread() is not threading.main_thread():
            before(kind, error, trace)  # the program goes on
            return
        _failing = 130 if issubclass(kind, KeyboardInterrupt) else 1  # as in the shell
        text = sentence(error)
        if _current is not None:
            _current.fail(_cause(error), _steps())
            _current.engine.quiet()
        before(kind, error, trace)
        if text is not None:
            print(text, file=sys.stderr, flush=True)

    sys.excepthook = hook
    atexit.register(_say_goodbye)
    os.register_at_fork(after_in_child=_forget)


def _cause(error: BaseException) -> str:
    mine = _plain[_current.rank]
    if any(len(_plain[worker]) < len(mine) for worker in range(_current.size)):
        # Under a strategy, an optimizer that is not wrapped is the likely cause of any other error.
        return f"its {mine[-1]} is not wrapped by grace_tf.wrap() ({first_line(error)})"
    return first_line(error)


def first_line(error: BaseException) -> str:
    """The class of an error and the first line of its message, shortened as a frame demands."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:_MOST_OF_A_LINE].rstrip('. ')}".rstrip(": ")


def _forget() -> None:
    global _current
    if _current is not None:
        _current.abandon()
        _current = None


def _end_at_once() -> None:
    """Ends a process that fails without TensorFlow's destructors, which would wait for the others
    and print after the last message."""
    if _failing and _current is not None:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_failing)


atexit.register(_end_at_once)  # at import, so that functions registered later run before it
