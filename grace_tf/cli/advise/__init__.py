"""The command `advise`: whether compression makes a training faster, and with which method.

Shapes or a model, a number of workers and a link come in from the command line; what these leave
open (codec times, the machine's share of an exchange, a step's compute time, errors) is measured
here.  Out go a table of all methods, one sentence, and if asked a picture and JSON.
"""

from __future__ import annotations

import argparse

from grace_tf.advice.link import FORM
from grace_tf.advice.quality import LEVELS
from grace_tf.cli.models import MODELS

METHODS = (
    "none",
    "bf16",
    "fp16",
    "qsgd:bits=8",
    "eden:bits=8",
    "eden:bits=5",
    "eden:bits=4",
    "qsgd:bits=4",
    "loco",
    "powersgd:rank=4",
    "acpsgd:rank=4",
    "chunktopk",
    "topk:ratio=0.01",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `advise`."""
    subject = parser.add_mutually_exclusive_group(required=True)
    subject.add_argument(
        "--model",
        metavar="MODEL",
        help=f"{', '.join(sorted(MODELS))}, or file.py:function, which returns a compiled Keras "
        "model and one batch of a worker: (model, x, y)",
    )
    subject.add_argument(
        "--shapes",
        metavar="FILE-OR-TEXT",
        help="of all variables, in order: 3,3,3,64;64;64,10 or a file with one on each line",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="how many; as started, under run")
    parser.add_argument(
        "--per-host",
        type=int,
        default=1,
        metavar="K",
        help="of them on each host, used with hierarchical (1)",
    )
    parser.add_argument("--link", help=f"{FORM}; under run it is measured")
    parser.add_argument(
        "--compute-ms",
        type=float,
        metavar="T",
        help="a worker's step without any exchange; measured here for file.py:function",
    )
    parser.add_argument("--methods", nargs="+", metavar="SPEC", default=METHODS, help="only these")
    parser.add_argument("--quality", default="safe", help=f"{' | '.join(LEVELS)} (safe)")
    parser.add_argument("--repeats", type=int, default=5, help="of each measurement (5)")
    parser.add_argument("--json", metavar="FILE", help="write all numbers there")
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the time of a step over the rate of the link there"
    )
