"""Shows the answers of `advise`: the table of all methods, what it rests on, and the sentence."""

from __future__ import annotations

from collections.abc import Sequence

from grace_tf.advice.timeline import Compute
from grace_tf.advice.verdict import Choice, Verdict, best_sixteen, seconds_text
from grace_tf.cli.advise.subject import Subject
from grace_tf.cli.describe import bytes_text
from grace_tf.cli.tables import print_table

COLUMNS = (
    "method",
    "quality",
    "a worker sends",
    "codec",
    "exchange",
    "hidden",
    "step",
    "x fp32",
    "x 16 bit",
    "vNMSE",
)


def rows(choices: Sequence[Choice]) -> list[list[str]]:
    """One row for each method, in the order given."""
    none = next(choice for choice in choices if choice.spec == "none").time.seconds
    sixteen = best_sixteen(choices)
    return [
        [
            choice.spec,
            choice.level or "-",
            bytes_text(choice.sent),
            seconds_text(choice.time.codec),
            seconds_text(choice.time.exchange),
            seconds_text(choice.time.hidden),
            seconds_text(choice.time.seconds),
            f"{none / choice.time.seconds:.2f}",
            f"{sixteen.time.seconds / choice.time.seconds:.2f}" if sixteen else "-",
            "-" if choice.vnmse is None else f"{choice.vnmse:.2g}",
        ]
        for choice in choices
    ]


def show(
    choices: Sequence[Choice],
    answer: Verdict,
    where: str,
    chosen: Subject,
    compute: Compute,
    quality: str,
) -> None:
    """Prints everything; the sentence is the last line."""
    title = f"{chosen.name}, {where}; a step without exchange {seconds_text(compute.seconds)}"
    print_table(title, COLUMNS, rows(choices))
    for choice in choices:
        if choice.why_not:
            print(f"not recommended: {choice.spec} {choice.why_not}")
    print(f"vNMSE of one step on gradients {chosen.stated}; quality {quality}")
    print(answer.sentence)
