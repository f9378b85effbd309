"""What the scripts of this folder share: they train with each method and say what it ended with.

A script gives `compare` its function `train(method, seed)`, which returns a `Trained`.  Worker 0
prints a table; with --json every worker prints a line for each training.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import grace_tf
from grace_tf.cli.tables import print_table


@dataclasses.dataclass
class Trained:
    """What a training ended with.

    Attributes:
      loss: a number of the whole model on the same data for every worker; less is better.
      chance: the loss of a model that has learnt nothing of its inputs.
      weights: variables.
      sent: the bytes that a worker sends in a step.
    """

    loss: float
    chance: float
    weights: Iterable[Any]
    sent: int


def sha(weights: Iterable[Any]) -> str:
    """A digest of the bits of variables."""
    digest = hashlib.sha256()
    for variable in weights:
        digest.update(np.ascontiguousarray(variable.numpy()).tobytes())
    return digest.hexdigest()[:16]


def compare(train: Callable[[str, int], Trained], title: str) -> None:
    """Runs `train(method, seed)` for each method and seed that the command line names."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--methods", nargs="+", default=["none", "qsgd", "eden:bits=4"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="a training for each")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each training")
    options = parser.parse_args()

    grace_tf.init()
    rows = []
    for method in options.methods:
        for seed in options.seeds:
            begun = time.monotonic()
            trained = train(method, seed)
            if not math.isfinite(trained.loss):
                raise RuntimeError(f"{method} ended with the loss {trained.loss}.")
            told = {
                "method": method,
                "seed": seed,
                "worker": grace_tf.rank(),
                "loss": trained.loss,
                "chance": trained.chance,
                "sent": trained.sent,
                "sha": sha(trained.weights),
                "seconds": round(time.monotonic() - begun, 1),
            }
            if options.json:
                print(json.dumps(told), flush=True)
            losses = [f"{told[name]:.4f}" for name in ("loss", "chance")]
            rows.append([method, str(seed), *losses, str(told["sent"]), told["sha"]])
    if grace_tf.rank() == 0:
        columns = ["method", "seed", "loss", "by chance", "bytes a step", "SHA of the weights"]
        print_table(title, columns, rows)
