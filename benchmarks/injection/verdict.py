"""Judges a run with a fault by how its workers have ended, and what they have said."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from injection.kinds import KINDS, Ends, Stops

GRACE = 10.0  # seconds beyond the timeout within which the others end
SAVED = 2  # steps that a kill may lose: backups are saved after each step, by workers in turn

# What may be wrong, by column of the table.
SILENT, LATE, LOST, UNCLEAR, ENDED = "silent", "late", "lost", "unclear", "ended"
LEFT = "left"
WRONGS = {
    SILENT: "no worker says anything: it has ended well, and has not trained as without the fault",
    LATE: "a worker has ended beyond the timeout and 10 s, or never",
    LOST: "work from before the last backup is lost, or a backup",
    UNCLEAR: "a sentence lacks the worker or the cause",
    ENDED: "the training has ended though it should go on, or nothing was injected",
    LEFT: "memory that workers shared has outlived them",
}

Wrong = tuple[str, str]  # one of WRONGS, and what was seen


@dataclasses.dataclass
class Facts:
    """What is known of a run that has ended.

    Attributes:
      fault: its `kind`, `worker` and `steps`, which the worker had taken before.
      at: when it was injected; None where it was not.
      ended: by rank the exit code and when the worker ended.
      hung: the workers that had not ended in time, and were killed.
      said: by rank its lines on stderr.
      ends: by rank the digests with which it ended the training well.
      whole: the digests of all workers without a fault, each of weights, optimizer and residuals.
      saved: the steps of the last backup of all workers, for one that is started again.
      changed: backups of workers without a fault that are not as before.
      held: how the faulty worker held the memory of its host before it was killed.
      left: what has outlived the workers.
    """

    engine: str
    workers: int
    timeout: float
    fault: Mapping[str, Any]
    at: float | None
    ended: Mapping[int, tuple[int, float]]
    hung: Sequence[int]
    said: Mapping[int, Sequence[str]]
    ends: Mapping[int, Mapping[str, Any]]
    whole: Sequence[Mapping[str, Any]]
    saved: int = 0
    changed: Sequence[str] = ()
    held: Sequence[str] = ()
    left: Sequence[str] = ()

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.workers) if rank != self.fault["worker"]]

    def last(self, rank: int) -> str:
        return (list(self.said.get(rank, ())) or [""])[-1]


def judge(facts: Facts) -> list[Wrong]:
    """All that does not hold; an empty list where the run holds."""
    if facts.at is None:
        return [(ENDED, "nothing was injected")]
    kind, left = KINDS[facts.fault["kind"]], [(LEFT, each) for each in facts.left]
    if kind.family == "memory" and facts.fault["steps"] and not facts.held:
        return [*left, (ENDED, "nothing was injected: the worker shared no memory")]
    found = [_wrong(facts, outcome) for outcome in kind.outcomes(facts.engine)]
    return left + min(found, key=len)  # of several outcomes one must hold


def _wrong(facts: Facts, outcome: Stops | Ends) -> list[Wrong]:
    found: list[Wrong] = [(LATE, f"worker {rank} hangs") for rank in facts.hung]
    if isinstance(outcome, Stops):
        return found + _stopped(facts, outcome)
    return found + (went_on(facts, outcome) if not found else [])


def _stopped(facts: Facts, outcome: Stops) -> list[Wrong]:
    found: list[Wrong] = []
    for rank in facts.others:
        code, at = facts.ended[rank]
        last = facts.last(rank)
        if rank in facts.hung:
            continue
        if code == 0:
            found.append((SILENT, f"worker {rank} ends well, at last it says {last!r}"))
        elif not _tells(facts, outcome, rank, last):
            found.append((UNCLEAR, f"worker {rank} says: {last!r}"))
        if at - facts.at > facts.timeout + GRACE:
            found.append((LATE, f"worker {rank} ends after {at - facts.at:.1f} s"))
    code, _ = facts.ended.get(facts.fault["worker"], (1, 0.0))
    if code == 0:
        found.append((SILENT, f"worker {facts.fault['worker']}, whose fault it is, ends well"))
    own = facts.last(facts.fault["worker"])
    if facts.fault["kind"] == "raise" and "boom" not in own:
        found.append((UNCLEAR, f"the worker that raises says at last: {own!r}"))
    if outcome.keeps:
        found += [(LOST, f"{name} is not as before") for name in facts.changed]
    return found


def _tells(facts: Facts, outcome: Stops, rank: int, line: str) -> bool:
    """Whether a line names the faulty worker and the cause."""
    faulty, steps = facts.fault["worker"], facts.fault.get("steps", 0)
    if outcome.whole:
        # Before the first step the variable that counts steps may not exist.
        after = f" after {steps} step{'s' * (steps > 1)}" if steps else "( after 0 steps)?"
        cause = outcome.cause.replace("{after}", after)
        sentence = f"Worker {rank} of {facts.workers} cannot go on, worker {faulty} {cause}; "
        sentence += r"start all of them again\."
        return re.fullmatch(rf"(\w+Error: )?{sentence}", line) is not None
    names = rf"[Ww]orkers? (\d+, )*{faulty}\b"
    return re.search(names, line) is not None and re.search(outcome.cause, line) is not None


def went_on(facts: Facts, outcome: Ends) -> list[Wrong]:
    """What is wrong with a training that should end well."""
    failed = [rank for rank in range(facts.workers) if facts.ended[rank][0]]
    if failed:
        category = LOST if outcome.goes_on else ENDED
        text = facts.last((failed[1:] or failed)[0] if len(failed) > 1 else failed[0])
        return [(category, f"worker {', '.join(map(str, failed))} has failed: {text!r}")]
    if len(facts.ends) < facts.workers:
        return [(SILENT, "a worker has ended well without having trained")]
    found: list[Wrong] = []
    ends = [facts.ends[rank] for rank in range(facts.workers)]
    if any(end["weights"] != ends[0]["weights"] for end in ends):
        found.append((SILENT, f"the weights differ at the end: {ends}"))
    elif outcome.exactly and [_state(end) for end in ends] != [_state(w) for w in facts.whole]:
        found.append((SILENT, f"it ends with {ends}, not {list(facts.whole)}"))
    if outcome.said and not any(
        re.search(outcome.said, line) for lines in facts.said.values() for line in lines
    ):
        found.append((SILENT, f"no worker has said a word of /{outcome.said}/"))
    first = min(int(end.get("first", 0)) for end in ends)
    if outcome.goes_on and first < facts.saved:
        found.append((LOST, f"it goes on from step {first}, its last backup was of {facts.saved}"))
    return found


def _state(end: Mapping[str, Any]) -> list[Any]:
    return [end[name] for name in ("weights", "optimizer", "residuals")]


def resumed(facts: Facts) -> list[Wrong]:
    """What is wrong with a training that was started again after a fault."""
    if facts.hung:
        return [(LATE, f"started again, worker {rank} hangs") for rank in facts.hung]
    found = went_on(facts, Ends(goes_on=True))
    return [(LOST if what == SILENT else what, f"started again, {text}") for what, text in found]
