"""Simulated workers that choose with "auto".  Each is a thread with a clock of its own.

Each step adds to its worker's clock the seconds that the test gives for the arm of the step.
"""

import math
import threading
from unittest import mock

import numpy as np

import grace_tf
from grace_tf.aggregation.choice import agreement
from grace_tf.aggregation.choice.tuner import Tuner
from grace_tf.transports.lifeline import lifeline

START = np.array([-1, -1, *8 * [0]], np.int64)
NOTHING = np.full([3], np.nan)


EDEN, FINER, TOPK = 3, 4, 7  # the numbers of arms; FINER is used in two hops, in place of EDEN


class Line:
    """The lifeline of one of several workers in this process; messages arrive at once."""

    patience, warned = 5.0, False

    def __init__(self, rank, lines):
        self.rank, self.size, self._lines = rank, 0, lines
        self.changed, self.broken = threading.Condition(threading.RLock()), None
        self.heard = {}
        lines.append(self)

    def on(self, topic, handler):
        pass

    def tell(self, topic, data):
        label, number, seconds = data
        for line in self._lines:
            if line is not self:
                with line.changed:
                    line.heard.setdefault((label, number), {})[self.rank] = list(
                        map(float, seconds)
                    )
                    line.changed.notify_all()

    def joined(self, seconds):
        return True

    def until(self, true, seconds):
        with self.changed:
            return self.changed.wait_for(lambda: true() or self.broken, seconds) and true()

    def check(self):
        if self.broken:
            raise RuntimeError(self.broken)


class Clocks:
    """The simulated workers of one test.

    `shown(worker, arm, step)` returns what a measured step shows: (vNMSE, residual by gradient).
    """

    def __init__(self, times, spec="auto", shown=lambda worker, arm, step: (0.0, math.nan)):
        self.spec, self.shown = spec, shown
        lines = []
        self.lines = [Line(rank, lines) for rank in range(len(times))]
        for line in lines:
            line.size = len(lines)
        self.times, self.here = times, threading.local()

    def run(self, steps):
        """The arms that each worker took, and its tuner."""
        out = [None] * len(self.times)

        def work(rank):
            self.here.line, now = self.lines[rank], [0.0]
            tuner, arms, saved = Tuner(grace_tf.get(self.spec), lambda: now[0]), [], START
            sample = NOTHING
            for step in range(steps):
                arm, measured, saved = tuner._next(saved, sample, step)
                now[0] += self.times[rank][arm]
                if measured:
                    sample = np.array([step, *self.shown(rank, int(arm), step)])
                arms.append(int(arm))
            out[rank] = arms, tuner

        heard = mock.patch.object(agreement, "_heard", _Heard(self.here))
        current = mock.patch.object(lifeline, "current", lambda: self.here.line)
        with heard, current:
            threads = [threading.Thread(target=work, args=(r,)) for r in range(len(out))]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
        return out


class _Heard:
    """The numbers of other workers that have arrived at the worker of the current thread."""

    def __init__(self, here):
        self._here = here

    def __getitem__(self, key):
        return self._here.line.heard.setdefault(key, {})

    def pop(self, key):
        return self._here.line.heard.pop(key)
