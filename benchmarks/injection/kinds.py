"""The kinds of faults, and what must follow each of them.

After a fault that `Stops` the others, each of them ends with an exit code other than 0 within the
workers' timeout and 10 s, and its last line names the worker and the cause.  After one that
`Ends`, the training ends with the same weights on all workers; where `exactly`, with the bits of a
training without a fault.
"""

from __future__ import annotations

import dataclasses

GROUP, STRATEGY, HOROVOD = ENGINES = ("group", "strategy", "horovod")

GONE = "is gone without a word: it was killed, crashed or lost its machine"
SILENT = (
    r"(has not answered for \d+ s: it is stopped, or its machine hangs"
    r"|did not take part within \d+ s)"
)
BOOM = "(failed|left fit){after}: ValueError: boom"
BATCHES = "batches|equally many|numbers? of steps"
DAMAGED = "all backups of worker .* damaged"


@dataclasses.dataclass(frozen=True)
class Stops:
    """What the others say of the faulty worker.

    `cause` is a pattern, looked for in the line.  With `whole` it is the end of a known sentence,
    in which `{after}` stands for the number of steps.  `keeps`: no backup of another worker may be
    changed.
    """

    cause: str
    whole: bool = False
    keeps: bool = False


@dataclasses.dataclass(frozen=True)
class Ends:
    """How the training ends.

    `exactly`: with the bits of a training without a fault; else with the same weights on all
    workers, since worker 0's values count, wherever the fault was.  `said`: a pattern of what some
    worker must say.  `goes_on`: no more work is lost than that after the last backup.
    """

    exactly: bool = True
    said: str | None = None
    goes_on: bool = False


# Of two outcomes either holds.
Outcome = Stops | Ends | tuple[Stops, Ends]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of fault.

    `family`: the row of the table.  `place`: where a fault comes; see `PLACES`.  `elsewhere`: what
    must follow under other engines, where it is not `follows`.  `template`: for damaged backups the
    number of workers of the training that made them, beyond that of this run.  `weight`: how often
    it is drawn; less for faults that take a timeout.
    """

    family: str
    follows: Outcome
    place: str = "start"
    engines: tuple[str, ...] = ENGINES
    elsewhere: dict[str, Outcome] = dataclasses.field(default_factory=dict)
    template: int = 0
    weight: int = 2

    def outcomes(self, engine: str) -> tuple[Stops | Ends, ...]:
        """What may follow; one of these holds."""
        found = self.elsewhere.get(engine, self.follows)
        return found if isinstance(found, tuple) else (found,)


# After how many steps of the two epochs of four a place comes.
PLACES = {
    "training begins": (0,),
    "epoch begins": (0, 4),
    "step begins": range(8),
    "in a step": range(8),
    "step ends": range(1, 9),
    "validation": (4, 8),
    "epoch ends": (4, 8),
    "training ends": (8,),
}
ANYWHERE = "anywhere"  # one of PLACES
MIDWAY = "midway"  # between two steps

LOST = {
    "SIGKILL": Kind("lost", Stops(GONE, True), ANYWHERE, weight=6),
    "SIGSTOP": Kind("lost", Stops(SILENT, True), ANYWHERE, weight=2),
    "raise": Kind("lost", Stops(BOOM, True), ANYWHERE, weight=6),
}


def _differs(cause: str, place: str = "start", **elsewhere: Outcome) -> Kind:
    return Kind("differs", Stops(cause), place, elsewhere=elsewhere)


_COMPILED = "compile|optimizer|Aggregator"
# One worker's program is another one from the start, or changes something in mid-training.
DIFFERS = {
    # The variable of the rate takes worker 0's value, as TensorFlow makes it.
    "learning rate": _differs("learning rate", strategy=Ends(False, "learning rate")),
    "first weights": Kind("differs", Ends(False)),
    "fewer batches": _differs(BATCHES),
    "batch size": _differs(BATCHES),
    "loss": _differs(r"\bloss"),
    "activation": _differs("activation|layer|model"),
    "regulariser": _differs("regulari[sz]er|layer|model"),
    "dtype policy": _differs("polic|dtype|precision|float16|strategy's scope"),
    "loss scale": _differs("LossScale|loss scal|optimizer"),
    "method": _differs("plans differ|method|compressor"),
    "seed of the method": _differs("seed"),
    "optimizer": _differs("optimizers differ|Adam"),
    "setting of the optimizer": _differs("beta_1"),
    "layer": _differs("layer|variables|model"),
    "width": _differs("layer|variables|model"),
    "steps per execution": _differs(rf"steps_per_execution|{BATCHES}"),
    "no wrap": _differs("not wrapped"),
    "recompiled": _differs(_COMPILED),
    # The step is traced again there, with what the first trace has made.
    "recompiled, same optimizer": Kind("differs", (Stops(_COMPILED), Ends())),
    "learning rate midway": _differs("learning rate", MIDWAY),
    "weights drawn anew": _differs("weights", MIDWAY),
    "rows permuted": _differs("weights", MIDWAY),
    "a bit of a weight": _differs("weights", MIDWAY),
}
# Callbacks of all workers that look at each one's own validation data, or of one worker alone.
CALLBACKS = {
    "EarlyStopping": Kind("callback", Ends(False)),
    "EarlyStopping, best weights": Kind("callback", Ends(False)),
    "ReduceLROnPlateau": Kind("callback", Ends(False)),
    "stop_training": Kind("callback", Stops("stop_training|callback"), MIDWAY),
    "weights after the last epoch": Kind("callback", Stops("weights"), "epoch ends"),
    "weights as training ends": Kind("callback", Stops("weights"), "training ends"),
    "rate after the last epoch": Kind("callback", Stops("learning rate"), "epoch ends"),
}
_LEFT_OUT = Ends(said="is damaged and is left out", goes_on=True)
BACKUPS = {
    "a bit of the weights": Kind("backup", _LEFT_OUT),
    "a bit of a residual": Kind("backup", _LEFT_OUT),
    "cut": Kind("backup", _LEFT_OUT),
    "cut json or index": Kind("backup", _LEFT_OUT),
    "newest missing": Kind("backup", Ends(said="leaves its backup", goes_on=True)),
    "all damaged": Kind("backup", Stops(DAMAGED, keeps=True)),
    "no backup": Kind("backup", Stops("has no backup", keeps=True)),
    "of fewer workers": Kind("backup", Stops("has no backup", keeps=True), template=-1),
    # Residuals keep their mean, so the bits are others.
    "of more workers": Kind("backup", Ends(False, goes_on=True), template=1),
    "of another model": Kind("backup", Stops("loaded|shape|model|backup", keeps=True)),
}
# What strangers say; see strangers.py.
STRANGERS = {
    "noise": Kind("strangers", Ends()),
    "brackets": Kind("strangers", Ends()),
    "silent connections": Kind("strangers", Ends()),
    "a byte at a time": Kind("strangers", Ends()),
    "HTTP": Kind("strangers", Ends()),
    "ssh": Kind("strangers", Ends()),
    "a hello without the secret": Kind("strangers", Ends()),
}
_OF_A_START = r"did not (come|start)|has not answered|did not take part|what listens there"
START = {
    # The workers have met, and TensorFlow or Horovod has not connected them yet.
    # TensorFlow cannot tell it from one that is stopped.
    "killed at the start": Kind(
        "start", Stops(GONE), elsewhere={STRATEGY: Stops(f"{_OF_A_START}|{GONE}")}
    ),
    "stopped at the start": Kind("start", Stops(_OF_A_START), weight=1),
    # Only the ports of a process group are known before it starts.
    "port in use": Kind("start", Stops("listen"), engines=(GROUP,), weight=3),
    "silence in worker 0's place": Kind(
        "start", Stops("what listens there"), engines=(GROUP,), weight=2
    ),
    "another program in worker 0's place": Kind(
        "start", Stops("what listens there"), engines=(GROUP,), weight=2
    ),
}
# Two workers of one host, or four of two hosts, which share memory by `hierarchical=True`.
MEMORY = {
    "killed while it is shared": Kind("memory", Stops(GONE, True), ANYWHERE, engines=(GROUP,)),
    "killed while it is made": Kind("memory", Stops(GONE, True), "made", engines=(GROUP,)),
}
KINDS: dict[str, Kind] = LOST | DIFFERS | CALLBACKS | BACKUPS | STRANGERS | START | MEMORY
FAMILIES = {
    "lost": "lost worker",
    "differs": "worker that differs",
    "callback": "callback on one worker",
    "backup": "damaged backup",
    "strangers": "strangers at the ports",
    "start": "loss at the start",
    "memory": "memory of a host",
}
