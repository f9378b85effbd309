"""The memory that the workers of a host share: kills while it is made, and what is left of it.

Each worker that makes such a memory writes the memory's inode into the folder of the run, since
other runs on this machine may share memory of the same name.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import sys
from collections.abc import Callable
from typing import Any

from grace_tf.ops.backend import host_memory
from grace_tf.transports import meeting_in_memory

_FILES = {meeting_in_memory.__file__, host_memory.__file__}
_LINES = 110  # so many lines of these files one of two workers runs to make the memory


def watch(job: dict[str, Any]) -> None:
    """Makes this process record each shared memory as soon as it has created it."""
    original = os.memfd_create

    def made(*given: Any) -> int:
        file = original(*given)
        with open(pathlib.Path(job["folder"], "memories"), "a") as told:
            told.write(f"{os.fstat(file).st_ino}\n")
        return file

    os.memfd_create = made


def lose_while_made(job: dict[str, Any], lose: Callable[[dict[str, Any]], None]) -> None:
    """Calls `lose` while this worker makes the shared memory, before a random line of that code."""
    original = meeting_in_memory._meet
    left = random.Random(job["fault"]["seed"]).randrange(_LINES)

    def end(line: str) -> None:
        sys.settrace(None)
        write_hold(job, line)
        lose(job)

    def each_line(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        left -= event == "line"
        if left < 0:
            end(f"{pathlib.Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        return each_line

    def meet(*given: Any) -> None:
        sys.settrace(lambda frame, *_: each_line if frame.f_code.co_filename in _FILES else None)
        original(*given)
        end("the last")

    meeting_in_memory._meet = meet


def write_hold(job: dict[str, Any], line: str = "") -> None:
    """Records, before a worker is killed, whether it has the memory open or mapped."""
    held = holders(job["folder"], "self")
    pathlib.Path(job["folder"], "held").write_text(json.dumps({"held": held, "line": line}))


def read_hold(folder: str) -> dict[str, Any]:
    """What `write_hold` has recorded; empty where it was not called."""
    path = pathlib.Path(folder, "held")
    return json.loads(path.read_text()) if path.exists() else {}


def holders(folder: str, processes: str = "[0-9]*") -> list[str]:
    """The open files and mappings in /proc of the memories that the run in this folder has made."""
    path = pathlib.Path(folder, "memories")
    memories = set(path.read_text().split()) if path.exists() else set()
    found = []
    for process in pathlib.Path("/proc").glob(processes):
        # A process may end meanwhile, and no other user's process can have opened the memory.
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text().splitlines():
                if "/memfd:" in line and line.split()[4] in memories:
                    found.append(f"{process.name} maps")
            for file in os.listdir(process / "fd"):
                with contextlib.suppress(OSError):
                    is_memory = os.readlink(process / "fd" / file).startswith("/memfd:")
                    if is_memory and str(os.stat(process / "fd" / file).st_ino) in memories:
                        found.append(f"{process.name} fd")
    return found


def names() -> set[str]:
    """The names of all files in /dev/shm, the shared memory of this machine."""
    return set(os.listdir("/dev/shm"))


def left(folder: str, before: set[str]) -> list[str]:
    """What is left of a run after its processes have ended.

    That is each process that still has its memory open or mapped, and each new name in /dev/shm.
    """
    held = [f"{each} holds memory of the run" for each in holders(folder)]
    return held + [f"/dev/shm/{name} is left" for name in sorted(names() - before)]
