"""The engines of the matrix, and what programs/cells.py says of each, run once for all tests."""

from __future__ import annotations

import functools
import importlib.util

import launch

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
    "overflow": "LossScaleOptimizer, a gradient overflows as `fp16`",
    "accumulation": "`gradient_accumulation_steps`",
    "xla": "`jit_compile=True`",
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


@functools.cache
def facts_of(engine):
    """`{(cell, method): [facts of each worker]}`, from the one run of the engine's program."""
    name, processes = ENGINES[engine]
    folder = launch.SHARED / "cells" / engine.replace(" ", "_")
    folder.mkdir(parents=True, exist_ok=True)
    words = "cells.py", name, folder, "--cells", *cells_of(engine)
    keywords = {"workers": processes, "timeout": 900, "linger": 5}
    run = launch.launch_once(*words, horovod=name == "horovod", **keywords).succeeded()
    facts = {}
    for answers in run.answers():
        for told in answers:
            facts.setdefault((told["cell"], told["method"]), []).append(told)
    return facts
