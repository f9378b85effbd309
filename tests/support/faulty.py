"""Runs of programs in which one worker fails."""

import re

from launch import launch

# Two forms: TensorFlow 2.15, and 2.16 and newer.
_LOGGED_BY_TENSORFLOW = re.compile(r"\d{4}-\d\d-\d\d [\d:.]+: [IWEF] |[IWEF]\d{4} [\d:.]+ ")


def faulty(*arguments, workers=2, program="faults.py"):
    """The exit code, what was printed, and the lines on stderr of each worker and the launcher."""
    # All get time to say their sentence, but for a stopped one, which would never end.
    linger = 1 if "SIGSTOP" in arguments else 60
    run = launch(program, *arguments, workers=workers, linger=linger)
    said = {**{str(rank): lines for rank, lines in enumerate(run.err)}, "grace_tf": run.launcher}
    return run.code, "\n".join(sum(run.out, [])), said


def last(lines):
    """The last line on stderr, without the kind of the error before it.

    A thread of TensorFlow may log that its server has stopped after Python's last line.
    """
    (*_, line) = (line for line in lines if not _LOGGED_BY_TENSORFLOW.match(line))
    return re.sub(r"^\w+Error: ", "", line)
