"""`advise` with as many threads as a worker of the suite has, and the trainings it is asked about.

Started by benchmarks/suite/advised.py as every worker of a place, with the arguments of `advise`;
its --model is this file and the name of a function.
"""

from __future__ import annotations

import argparse
import importlib
import os
from functools import partial

import keras
import tensorflow as tf

from benchmarks.suite.optimizers import plain
from benchmarks.suite.tasks.outline import OUTLINES
from grace_tf.cli.advise import add_arguments


def compiled(name: str, workers: int) -> tuple[keras.Model, tf.Tensor, tf.Tensor]:
    """(the model, with the suite's kind of optimizer, and one batch of a worker)."""
    outline = OUTLINES[name]
    task = importlib.import_module(f"benchmarks.suite.tasks.{outline.module}").Task(outline, 1)
    model = task.build()
    model.compile(plain(outline.optimizer, 0.001), task.losses(), jit_compile=False)
    return model, *map(tf.constant, next(task.batches(0, workers)))


vision_2, vision_4 = (partial(compiled, "vision", workers) for workers in (2, 4))
transformer_2, transformer_4 = (partial(compiled, "transformer", workers) for workers in (2, 4))


def main() -> int:
    from grace_tf.cli.advise import command
    from grace_tf.transports.world.world import expected_size

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    threads = max(1, (os.cpu_count() or 1) // expected_size())
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    return command.main(parser.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
