"""`Trial`: which arm each step of "auto" takes, and what follows from the measured times.

It takes the seconds of blocks of steps, the slowest worker's, and returns the next blocks.  It
reads no clock and knows no worker: equal times give equal decisions, so all workers decide alike.

    look      a block of each arm; those that are far behind the best are dropped
    compare   rounds of blocks, forwards and backwards in turn: a trend affects all arms alike
    watch     many steps of the chosen arm; then blocks of it, its rival, its rival, and it
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

BLOCK = 4  # steps of a block; the first is not counted, since the one before it was another arm's
ROUNDS = 6
FAR = 1.25  # times the best: such an arm is dropped at once
BEHIND = 1.1  # times the best over two rounds or more: dropped too
GAIN = 1.03  # what compression must bring, with a one-sided confidence of 95 %
# Times the chosen arm: a rival that is not compared again, of a method and of a baseline.  A method
# pays for comparisons with what it gains; a baseline gains nothing.
DISTANT, NEAR = 2.0, 1.25
SELDOM = 1.25  # times the chosen arm: such a rival is compared every `WATCHES[-1]` steps only
LEAD = 1.01  # what a rival must bring in two watches that follow each other
# All arms are looked at again where the time of a step has grown or shrunk by this factor since the
# last watch.  The first watch uses the time that the comparison has measured.
DRIFT = 1.3
WATCHES = (50, 50, 100, 300)  # steps before each comparison with the rival; the last repeats
SWITCHES = 3  # how often a rival may take the place of the chosen arm
FEWEST = 200  # steps of a training in which timing can pay; after so many it begins at any rate

# 95 % quantiles of Student's t with 1, 2, … degrees of freedom (any table of statistics).
_T95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895)


@dataclasses.dataclass(frozen=True)
class Block:
    """`steps` steps of one arm."""

    arm: int
    steps: int = BLOCK


@dataclasses.dataclass(frozen=True)
class Decision:
    """The chosen arm, and the seconds of a step by arm, as far as they are known.

    `rival`: the arm that watches compare it with; the arm itself where none is worth the steps.
    """

    arm: int
    rival: int
    seconds: dict[int, float]
    reason: str  # of "measured", "drift", "few steps", "alone"


class Trial:
    """The blocks of one training, one list after the other.

    Args:
      arms: their number; arm 0 is uncompressed.
      baselines: the first arms, which the others must beat by `GAIN`.

    Attributes:
      left: the arms that are never used again. A baseline is never among them.
      pruned: the arms that the step does not hold.
      drifted: whether all arms are looked at again since steps have become slower, or faster.
    """

    def __init__(self, arms: int, baselines: int) -> None:
        self._arms, self._baselines = arms, baselines
        self.left: set[int] = set()
        self.pruned: set[int] = set()
        self.drifted = False
        self._alive = self._admitted
        self._looks: dict[int, float] = {}  # seconds by arm
        self._unseen: list[int] = []  # the arms of the last blocks of a look
        self._rounds: list[dict[int, float]] = []
        self._phase = ""
        self._behind = 0  # watches in a row in which the rival led
        self._expected = 0.0  # seconds of a step in the last watch, or in the first comparison
        self._first = True  # whether no arm was chosen so far
        self._watches = self._switches = 0
        self._watched_once = False  # whether a watch has ended since all arms were looked at
        self.decision: Decision | None = None

    def fixed(self, arm: int, reason: str, steps: int = 1 << 62) -> list[Block]:
        """One block in which nothing is timed; the arms are compared after it."""
        self._phase, self.decision = "fixed", Decision(arm, arm, {}, reason)
        return [Block(arm, steps)]

    @property
    def _admitted(self) -> list[int]:
        return [arm for arm in range(self._arms) if arm not in self.left | self.pruned]

    @property
    def watched(self) -> int | None:
        """The method that a watch takes, as the chosen arm or its rival; None outside watches."""
        if self._phase != "watch":
            return None
        pair = (self.decision.arm, self.decision.rival)
        return next((arm for arm in pair if arm >= self._baselines), None)

    @property
    def timing(self) -> bool:
        """Whether the times of steps are wanted."""
        return self._phase != "fixed"

    def begin(self) -> list[Block]:
        """The first blocks: the last baseline warms up, then every arm has a block."""
        self._looks, self._watched_once = {}, False
        return [Block(self._baselines - 1), *self._look()]

    def widened(self) -> list[Block]:
        """The next blocks, after the step was traced again with further arms.

        Only the further arms get a block, unless a watch has ended since the others had theirs.
        """
        if self._watched_once:
            return self.begin()
        self._first = True  # the next decision is the first one with these arms
        return self._look()

    def _look(self) -> list[Block]:
        self._phase, self._rounds, self.decision, self._behind = "look", [], None, 0
        self._unseen = [arm for arm in self._admitted if arm not in self._looks]
        return [*map(Block, self._unseen)]

    def resume(self, arm: int, rival: int, watches: int, switches: int) -> list[Block]:
        """The blocks of a watch in which a training was saved."""
        self.decision = Decision(arm, rival, {}, "measured")
        self._watches, self._switches, self._expected = watches, switches, 0.0
        self._first = False
        return self._watch()

    @property
    def saved(self) -> tuple[int, int, int, int]:
        """What `resume` takes; the arm is -1 where none was chosen by its times."""
        chosen = self.decision if self.timing else None
        arm, rival = (-1, -1) if chosen is None else (chosen.arm, chosen.rival)
        return arm, rival, self._watches, self._switches

    def after(self, seconds: Sequence[float]) -> list[Block]:
        """The next blocks, from the seconds of a step in each of the last ones.

        A block that was not timed as a whole has NaN; then nothing is decided.
        """
        self.drifted = False
        if self._phase == "fixed":
            return self.begin()
        if self._phase == "look":
            return self._looked(dict(zip(self._unseen, seconds[-len(self._unseen) :])))
        if self._phase == "compare":
            return self._compared(seconds)
        return self._watched(seconds)

    def _looked(self, found: dict[int, float]) -> list[Block]:
        self._looks = {**self._looks, **found}
        best = min(self._looks[arm] for arm in self._admitted)
        self._alive = [arm for arm in self._admitted if self._looks[arm] <= FAR * best]
        return self._next_round()

    def _next_round(self) -> list[Block]:
        if len(self._alive) == 1 or len(self._rounds) == ROUNDS:
            return self._decide()
        self._phase = "compare"
        order = self._alive if len(self._rounds) % 2 == 0 else self._alive[::-1]
        self._order = list(order)
        return [Block(arm) for arm in order]

    def _compared(self, seconds: Sequence[float]) -> list[Block]:
        self._rounds.append(dict(zip(self._order, seconds)))
        if len(self._rounds) > 1:
            middle = {arm: self.middle(arm) for arm in self._alive}
            best = min(middle.values())
            self._alive = [arm for arm in self._alive if middle[arm] <= BEHIND * best]
        return self._next_round()

    def middle(self, arm: int) -> float:
        """The median seconds of a step of this arm, as far as it was compared; else infinite."""
        measured = [found[arm] for found in self._rounds if arm in found]
        return statistics.median(measured) if measured else self._looks.get(arm, math.inf)

    def _decide(self) -> list[Block]:
        middle = {arm: self.middle(arm) for arm in self._admitted}
        ranked = sorted(self._alive, key=middle.__getitem__)
        first = [arm for arm in ranked if arm < self._baselines]
        arm = ranked[0]
        if first and arm >= self._baselines:
            arm = next((a for a in ranked if a >= self._baselines and self._gains(a, first[0])), -1)
            arm = first[0] if arm < 0 else arm
        # The rival of a method is the best baseline, that of a baseline the best method.
        others = [a for a in self._admitted if a != arm]
        if arm >= self._baselines:
            others = [a for a in others if a < self._baselines]
        rival = min(others, key=middle.__getitem__, default=arm)
        if middle[rival] > (DISTANT if arm >= self._baselines else NEAR) * middle[arm]:
            rival = arm
        self.decision = Decision(arm, rival, middle, "measured")
        seldom = SELDOM * middle[arm] < middle[rival]
        self._watches = len(WATCHES) - 1 if seldom else 0
        # Only for the first choice: if steps are always slower during comparisons than in watches,
        # every watch would disagree with its comparison and start the next comparison.
        self._expected = middle[arm] if self._first else 0.0
        self._first = False
        return self._watch()

    def _gains(self, arm: int, baseline: int) -> bool:
        """Whether the median over the rounds gains `GAIN`, and the mean with 95 % confidence."""
        if self.middle(baseline) < GAIN * self.middle(arm):
            return False
        gains = [
            math.log(found[baseline] / found[arm])
            for found in self._rounds
            if arm in found and baseline in found
        ]
        if len(gains) < 2:
            return False
        error = statistics.stdev(gains) / math.sqrt(len(gains))
        t = _T95[min(len(gains) - 1, len(_T95)) - 1]
        return statistics.fmean(gains) - t * error > math.log(GAIN)

    def _watch(self) -> list[Block]:
        self._phase = "watch"
        arm, rival = self.decision.arm, self.decision.rival
        length = WATCHES[min(self._watches, len(WATCHES) - 1)]
        if rival == arm:
            return [Block(arm, length)]
        return [Block(arm, length), *map(Block, (arm, rival, rival, arm))]

    def _against_the_rival(self) -> list[Block]:
        """Compares the chosen arm and its rival anew; the others are as far behind as they were."""
        self._alive = sorted({self.decision.arm, self.decision.rival})
        self._looks, self._rounds, self.decision, self._behind = self.decision.seconds, [], None, 0
        return self._next_round()

    def _watched(self, seconds: Sequence[float]) -> list[Block]:
        self._watches, self._watched_once = self._watches + 1, True
        whole, *compared = seconds
        if any(map(math.isnan, seconds)):
            return self._watch()
        before, self._expected = self._expected, whole
        if before and not 1 / DRIFT < whole / before < DRIFT:
            self.drifted = True
            return self.begin()
        self._looks = {**self._looks, self.decision.arm: whole}
        if compared:
            self._looks[self.decision.rival] = statistics.fmean(compared[1:3])
            # By chance alone both blocks of the rival are the faster ones once in six watches.
            ours, theirs = (compared[0], compared[3]), compared[1:3]
            leads = max(theirs) < min(ours) and LEAD * sum(theirs) < sum(ours)
            self._behind = self._behind + 1 if leads else 0
            if self._behind == 1:
                self._watches = 0  # looks again soon
            elif self._behind == 2 and self._switches < SWITCHES:
                self._switches += 1
                return self._against_the_rival()
        return self._watch()
