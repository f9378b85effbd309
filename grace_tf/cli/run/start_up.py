"""Hides the lines that TensorFlow's C++ code writes to stderr while it is imported.

They say how TensorFlow was built, come in every process, and need no action.  Log levels do not
stop all of them: some are written before TensorFlow has read its level.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import re
import subprocess
import sys

_WHERE = r"[\w./-]+\.(?:cc|h):\d+\] "
# Two forms: TensorFlow 2.16 and newer, and 2.15.
_NOTE = rf"(?:[IW]\d{{4}} [\d:.]+ +\d+ |\d{{4}}-\d\d-\d\d [\d:.]+: [IW] ){_WHERE}"
_ERROR = rf"(?:E\d{{4}} [\d:.]+ +\d+ |\d{{4}}-\d\d-\d\d [\d:.]+: E ){_WHERE}"
_LINES = re.compile(
    "|".join(
        (
            r"WARNING: All log messages before absl::InitializeLog\(\) is called are written to ",
            _NOTE + r"oneDNN custom operations are on\. ",
            _NOTE + r"This TensorFlow binary is optimized ",
            r"To enable the following instructions: .*, rebuild TensorFlow with the appropriate ",
            _NOTE + r"Could not find cuda drivers on your machine, GPU will not be used\.",
            _NOTE + r"TF-TRT Warning: Could not find TensorRT",
            _NOTE + r"computation placer already registered\. ",
            # These two have the level of errors, but report no error: builds for GPUs register some
            # factories twice, and oneDNN names the types that it leaves to Eigen.
            _ERROR
            + r"Unable to register cu\w+ factory: Attempting to register factory for plugin ",
            _ERROR + r"oneDNN supports DT_\w+ only on platforms with .*\. Falling back to ",
        )
    )
)


def is_start_up_line(line: str) -> bool:
    """Whether a line is one of these; False for real errors and for lines of the program."""
    return _LINES.match(line) is not None


def of_command_line() -> bool:
    """Whether this process is `python -m grace_tf` or `grace-tf`, and not a user's program."""
    words = sys.orig_argv
    words = words[words.index("-m") + 1 :] if "-m" in words else []
    return words[:1] == ["grace_tf"] or os.path.basename(sys.argv[0]) == "grace-tf"


def imports_all() -> bool:
    """Whether `import grace_tf` imports TensorFlow: always, except for the command line."""
    return _asked or not of_command_line()


def import_package(quiet: bool) -> None:
    """Does the full import of grace_tf for the command line; `quiet` hides TensorFlow's lines."""
    global _asked
    if imports_all():
        return  # a program that calls a command
    _asked = True
    if quiet:
        hide()
    importlib.reload(sys.modules["grace_tf"])
    let_python_through()


def hide() -> None:
    """Hides these lines of this process until `show`.

    Call it before TensorFlow is imported.  A child process filters stderr, so that the last lines
    of a process that crashes are not lost.
    """
    try:
        stderr = os.dup(2)
    except OSError:  # closed
        return
    command = [sys.executable, "-IS", __file__]
    # In a session of its own the filter gets no Ctrl-C, so it does not end before this process.
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    os.dup2(reader.stdin.fileno(), 2)
    _hidden.append((stderr, reader))
    atexit.register(show)


def let_python_through() -> None:
    """Lets Python write to the original stderr; hides only lines that do not come from Python."""
    if _hidden:
        stderr, _ = _hidden[-1]
        sys.stderr = open(os.dup(stderr), "w", buffering=1, errors="backslashreplace")


def show() -> None:
    """Undoes `hide`, after the filter has shown everything written so far."""
    while _hidden:
        stderr, reader = _hidden.pop()
        os.dup2(stderr, 2)
        os.close(stderr)
        reader.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # another child keeps the pipe open
            reader.wait(timeout=2)


def _filter() -> None:
    """Runs in the child: copies stdin to stderr without these lines."""
    for line in sys.stdin.buffer:
        if not is_start_up_line(line.decode(errors="replace")):
            os.write(2, line)


_asked = False  # whether a command has requested the full import
_hidden: list[tuple[int, subprocess.Popen]] = []

if __name__ == "__main__":
    _filter()
