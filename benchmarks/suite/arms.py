"""The arms of the benchmark: which method each trains with, and the learning rates it may choose.

Each arm of a task has as many learning rates to choose from as every other arm.  They are three,
each about three times the one before.  Where an arm needs another optimizer than the task's (dgc
holds the momentum itself, signsgd takes steps of one length), its three are of that optimizer.
"""

from __future__ import annotations

import dataclasses

from grace_tf.core.schedule import warm_up

RATES = {  # by kind of optimizer
    "momentum": (0.03, 0.1, 0.3),
    "adam": (0.001, 0.003, 0.01),
    "sgd": (3.0, 10.0, 30.0),
    "dgc": (0.01, 0.03, 0.1),
    "dgc instead of adam": (0.03, 0.1, 0.3),
    "signs": (0.0003, 0.001, 0.003),
}
LARGEST_NORM = 1.0  # of all gradients together, after the exchange, where there is momentum
DGC_RATIO, DGC_WARM = 0.01, 5  # the final ratio; its warm-up is a fifth of the steps


@dataclasses.dataclass(frozen=True)
class Arm:
    """What one arm trains with.

    Attributes:
      name: as it is called in results and tables.
      method: the spec for `grace_tf.wrap`; None where the optimizer is not wrapped.
      own: the kind of optimizer in place of the task's, "" for the task's.
      engine: the engine that the arm needs, "" for any.
      trains: whether the arm has accuracies of its own.  Bounds have none.  Of peers without
        accuracies only the step times are compared.
    """

    name: str
    method: str | None
    own: str = ""
    engine: str = ""
    trains: bool = True

    def optimizer(self, tasks: str) -> str:
        """The kind of optimizer, of a task whose own kind is `tasks`."""
        if self.own == "dgc" and tasks == "adam":
            return "dgc instead of adam"
        return self.own or tasks

    def rates(self, tasks: str) -> tuple[float, ...]:
        return RATES[self.optimizer(tasks)]

    def stages(self, steps: int) -> tuple[tuple[int, str], ...]:
        """(first step, method) for each stage of a training of so many steps."""
        if self.name != "dgc":
            return ((0, self.method or ""),)
        ratios = warm_up(max(4, steps // DGC_WARM), DGC_RATIO)
        return tuple((at, f"dgc:ratio={r}") for at, r in zip(ratios.boundaries, ratios.values))

    def schedule(self, steps: int) -> str:
        """The spec that trains so many steps: that of `stages`, as one text."""
        stages = self.stages(steps)
        if len(stages) == 1:
            return stages[0][1]
        values = "/".join(f"{method.partition('=')[2]}@{at}" for at, method in stages)
        return f"dgc:ratio={values}"


ARMS = {
    arm.name: arm
    for arm in (
        Arm("none", "none"),
        Arm("bf16", "bf16"),
        Arm("auto", "auto"),
        Arm("qsgd", "qsgd"),
        Arm("eden", "eden"),
        Arm("loco", "loco"),
        Arm("topk", "topk:ratio=0.01"),
        Arm("powersgd", "powersgd"),
        Arm("acpsgd", "acpsgd"),
        Arm("dgc", f"dgc:ratio={DGC_RATIO}", own="dgc"),
        Arm("signsgd", "signsgd", own="signs"),
    )
}
# No exchange at all: what no method can beat.
ALONE = Arm("no communication", None, engine="group", trains=False)
PEERS = {
    arm.name: arm
    for arm in (
        Arm("Horovod", None, engine="horovod", trains=False),
        Arm("Horovod fp16", None, engine="horovod", trains=False),
        Arm("DDP", None, engine="ddp", trains=False),
        Arm("DDP fp16", None, engine="ddp", trains=False),
        Arm("DDP PowerSGD", None, engine="ddp", trains=False),
    )
}
ALL = {**ARMS, ALONE.name: ALONE, **PEERS}
