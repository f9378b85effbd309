"""The command `bench`: measures the codecs, or a whole step of a model."""

from __future__ import annotations

import argparse

from grace_tf.cli.models import MODELS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `bench`."""
    parser.add_argument("--methods", nargs="+", metavar="SPEC", help="only these (all registered)")
    parser.add_argument("--sizes", default="1e5,1e6,25e6", help="elements, such as 1e5,1e6,25e6")
    parser.add_argument("--workers", type=int, default=2, help="payloads to aggregate (2)")
    parser.add_argument("--repeats", type=int, default=9, help="of which the median counts (9)")
    parser.add_argument("--against", choices=["reference"], help="time them too")
    parser.add_argument(
        "--model",
        choices=sorted(MODELS),
        help="time a user's whole step on the gradients of this model instead",
    )
    parser.add_argument("--json", help="append the numbers to this file, one line each")
