"""The engines of the matrix, and what programs/cells.py says of each, run once for all tests."""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import json
import pathlib

from launch import launch

# By the name in the matrix: the program's name for the engine, and its processes.
ENGINES = {
    "alone": ("alone", 1),
    "Mirrored 2": ("mirrored", 1),
    "MWMS 2": ("mwms", 2),
    "MWMS 3": ("mwms", 3),
    "MWMS 2 × 2": ("mwms_of_two", 2),
    "process group 2": ("group", 2),
    "Horovod 2": ("horovod", 2),
}
CELLS = {
    "fit": "`fit`",
    "validation": "validation, `evaluate`, `predict`",
    "batchnorm": "BatchNormalization",
    "syncbn": "BatchNormalization, synchronised",
    "lossscale": "LossScaleOptimizer, one worker overflows",
    "accumulation": "`gradient_accumulation_steps`",
    "steps_per_execution": "`steps_per_execution`",
    "ema": "`use_ema`",
    "clipping": "`clipnorm`, `global_clipnorm`, `clipvalue`",
    "decay": "`weight_decay`",
    "resume": "saved and resumed",
    "callbacks": "LearningRateScheduler, ModelCheckpoint",
    "uneven": "a smaller last batch",
}
OF_TWO_DEVICES = ("fit", "validation", "syncbn")  # what is run with two devices a process
HAS_HOROVOD = importlib.util.find_spec("horovod") is not None


def cells_of(engine):
    return OF_TWO_DEVICES if engine == "MWMS 2 × 2" else tuple(CELLS)


class Runs:
    """What the programs have said; `folder` is one for all processes of pytest."""

    def __init__(self, folder):
        self._folder = pathlib.Path(folder)
        self.of = functools.cache(self._of)

    def _of(self, engine):
        """`{(cell, method): [facts of each worker]}`, from the one run of the engine's program."""
        name = engine.replace(" ", "_")
        with open(self._folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
            kept = self._folder / f"{name}.json"
            if not kept.exists():
                kept.write_text(json.dumps(_run(engine, self._folder / name)))
            run = json.loads(kept.read_text())
        assert run["code"] == 0, f"exit code {run['code']}\n{run['printed']}"
        facts = {}
        for rank, told in run["told"]:
            facts.setdefault((told["cell"], told["method"]), {})[rank] = told
        return {key: [workers[rank] for rank in sorted(workers)] for key, workers in facts.items()}


def _run(engine, folder):
    """Runs an engine's program: its exit code, [rank, facts] of each line, the end of the rest."""
    name, processes = ENGINES[engine]
    folder.mkdir()
    words = "cells.py", name, folder, "--cells", *cells_of(engine)
    run = launch(*words, workers=processes, timeout=900, linger=5, horovod=name == "horovod")
    told = [(rank, answer) for rank, answers in enumerate(run.answers()) for answer in answers]
    rest = [line for line in run.text.splitlines() if '{"cell"' not in line]
    return {"code": run.code, "told": told, "printed": "\n".join(rest)[-6000:]}
