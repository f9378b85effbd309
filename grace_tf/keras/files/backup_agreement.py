"""Decides from which backup the workers of a training go on, and when a worker may delete its own.

Training is synchronous, so workers are at most one backup apart: before loading they agree on the
newest number that all of them have undamaged.  A backup is deleted only when a newer one is whole
on all workers, or when all workers have ended `fit`.

Between several processes there are two empty files beside the backups.  `begun` is made before the
first step: a worker with `begun` and no backup was killed before its first backup; a worker without
both has lost its folder, or is new.  `ended` is made when all workers have ended `fit`, before any
of them deletes its backups: where others have `ended`, a worker without backups has deleted its own
already.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from grace_tf.keras.files.paths_by_worker import LOG, place
from grace_tf.keras.fit import steps
from grace_tf.transports.group import Group
from grace_tf.transports.world.current_workers import together

TIMEOUT = 120.0  # seconds for the other processes of a strategy without a timeout
_BEGUN, _ENDED = "begun", "ended"
_ASIDE = "left-"  # before the name of a backup that not all workers have
_NONE = -1  # the number for a worker without a backup that has not begun
_DAMAGED = -2  # the number for a worker all of whose backups are damaged


def agree(model: Any, numbers: Sequence[int], damaged: Sequence[int], folder: str) -> int:
    """The newest backup that all workers have undamaged.

    `numbers` are the backups of this worker, `damaged` those of them that do not count.

    Returns 0 where training starts from the beginning: no worker has a backup, a kill came before
    the first one was complete on all workers, or all have ended `fit` and some have deleted theirs.

    Raises RuntimeError on every worker, and leaves every backup where it is, where one worker has
    no backup and others do, where all backups of a worker are damaged, where backups are further
    apart than a kill leaves them, or where a worker does not come.
    """
    rank, count = place(model)
    begun, ended = (_is_marked(folder, name) for name in (_BEGUN, _ENDED))
    newest, oldest = _range(numbers, damaged, begun)
    if count == 1:
        if newest == _DAMAGED:
            raise RuntimeError(
                f"BackupAndRestore: all backups in {folder} are damaged. Nothing was deleted. Put "
                "a whole one there, or move the folder away to start from the beginning."
            )
        return max(newest, 0)
    table = _others(model).handshake([newest, oldest, ended], "BackupAndRestore").tolist()
    chosen = _choose(table, f"{folder} is worker {rank}'s folder. Nothing was deleted.")
    if newest > chosen:
        LOG.warning(
            "Worker %d of %d leaves its backup %d for %s, which all workers have.",
            *(rank, count, newest, f"number {chosen}" if chosen else "a start from the beginning"),
        )
    return chosen


def _range(numbers: Sequence[int], damaged: Sequence[int], begun: bool) -> tuple[int, int]:
    """The newest and the oldest backup of this worker, between which none is damaged."""
    if not numbers:
        return (0 if begun else _NONE,) * 2
    newest = max(set(numbers) - set(damaged), default=_DAMAGED)
    if begun and newest == 1 and not damaged:
        return 1, 0  # this worker can also start from the beginning
    below = max((number for number in damaged if number < newest), default=0)
    return newest, min((number for number in numbers if below < number <= newest), default=_DAMAGED)


def _choose(table: Sequence[Sequence[int]], where: str) -> int:
    """The backup that all can load, by the (newest, oldest, ended) of all workers; see `agree`."""
    newests, oldests, ended = zip(*table)
    damaged = _listed(worker for worker, newest in enumerate(newests) if newest == _DAMAGED)
    if damaged:
        raise RuntimeError(
            f"BackupAndRestore: all backups of worker {damaged} of {len(table)} are damaged; "
            f"{where} Give that worker a whole backup of its own, or move the folders of all "
            "workers away to start from the beginning."
        )
    if max(newests) <= 0:
        return 0
    lacking = _listed(worker for worker, newest in enumerate(newests) if newest == _NONE)
    if lacking:
        if all(done for newest, done in zip(newests, ended) if newest != _NONE):
            return 0
        raise RuntimeError(
            f"BackupAndRestore: worker {lacking} of {len(table)} has no backup, but others have "
            f"(the newest is number {max(newests)}); {where} Give every worker the folder that it "
            "had before (is its disk mounted?) and start as many workers as before, or move the "
            "folders of all workers away to start from the beginning."
        )
    if max(oldests) > min(newests):
        raise RuntimeError(
            "The backups of the workers do not fit together (the newest are "
            f"{_listed(newests)}, the oldest {_listed(oldests)}, damaged ones left out); {where} "
            "Move the folders of all workers away to start from the beginning."
        )
    return min(newests)


def _others(model: Any) -> Group:
    found = together(getattr(model, "distribute_strategy", None), TIMEOUT)
    assert found is not None  # place() has said that there are several processes
    return found


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _is_marked(folder: str, name: str) -> bool:
    return tf.io.gfile.exists(os.path.join(folder, name))


def _mark(folder: str, name: str) -> None:
    tf.io.gfile.makedirs(folder)
    with tf.io.gfile.GFile(os.path.join(folder, name), "w") as file:
        file.write("")


def begin(model: Any, folder: str) -> None:
    """Marks that training begins or goes on here; removes the marks of an earlier training."""
    if place(model)[1] > 1:
        _mark(folder, _BEGUN)
        if _is_marked(folder, _ENDED):
            tf.io.gfile.remove(os.path.join(folder, _ENDED))


def end(model: Any, folder: str, delete: Callable[[], None]) -> None:
    """Deletes this worker's backups when all workers have ended `fit`; at once if it is alone."""
    if place(model)[1] == 1:
        return delete()
    taken = steps.now()

    def ended() -> None:
        _mark(folder, _ENDED)
        # No worker deletes backups before all workers have marked the end: see `agree`.
        _others(model).handshake([], "the end of BackupAndRestore")
        delete()

    if taken is None:
        _others(model).handshake([], "the end of fit with BackupAndRestore")
        ended()
    else:
        taken.when_all_have_ended(ended)


def delete_superseded(folder: str, newest: int) -> None:
    """Deletes the backups that `agree` has set aside, once all workers have a newer one.

    This worker has just saved `newest`, so all have saved the number before: between two backups
    there is a step, and no worker takes it before its backup is complete.
    """
    for name in tf.io.gfile.listdir(folder):
        if (found := re.match(rf"{_ASIDE}(?:\D*-)?(\d+)", name)) and int(found[1]) < newest:
            path = os.path.join(folder, name.rstrip("/"))
            tf.io.gfile.rmtree(path) if tf.io.gfile.isdir(path) else tf.io.gfile.remove(path)


def leave_aside(folder: str, name: str) -> None:
    """Renames a backup: it does not count any more, but the user can still find it."""
    aside = os.path.join(folder, _ASIDE + name)
    if tf.io.gfile.isdir(aside):
        tf.io.gfile.rmtree(aside)  # of an earlier attempt
    tf.io.gfile.rename(os.path.join(folder, name), aside, overwrite=True)
