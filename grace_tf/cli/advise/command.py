"""Runs `advise`: measures what the command line leaves open, and shows the model's answers."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial

import tensorflow as tf

from grace_tf.advice.link import Link
from grace_tf.advice.network import Network
from grace_tf.advice.quality import Facts, admitted, level_of
from grace_tf.advice.timeline import Bucket, Compute, step_time
from grace_tf.advice.verdict import Choice, Verdict, best_sixteen, verdict
from grace_tf.aggregation import kept_memory
from grace_tf.cli.advise import codecs, errors, picture, probe, report
from grace_tf.cli.advise.gradients import drawn
from grace_tf.cli.advise.situation import Situation, wanted
from grace_tf.cli.advise.subject import Subject, subject
from grace_tf.cli.bench.machine import machine
from grace_tf.cli.tables import progress
from grace_tf.core.specs import name_of
from grace_tf.line.optimizer_settings import to_begin_with
from grace_tf.line.settings import settings
from grace_tf.transports.world.world import expected_size, init

Codecs = Mapping[str, Sequence[Bucket]]  # by spec


def main(options: argparse.Namespace) -> int:
    """Measures, and prints the table and the sentence; under `run` worker 0 prints."""
    specs = _checked(options)
    asked = wanted(options, expected_size())
    kept_memory.keep()  # as in the trainings that are asked about
    # A process group begins before TensorFlow computes anything.
    group = init() if expected_size() > 1 else None
    chosen = subject(options.model, options.shapes)
    if chosen.compute is None and options.compute_ms is None:
        raise ValueError(
            f"Of {chosen.name} only the shapes are known: give the time of a worker's step without "
            "any exchange by --compute-ms, or the model itself by --model file.py:function."
        )
    with progress("advise", 2 + 2 * len(specs)) as shown:
        situation = asked.measured(group)
        shown.advance("measured what exchanges take")
        meet, agree = (group.barrier, partial(probe.largest, group)) if group else (_alone, list)
        if options.compute_ms is not None:
            compute = Compute.of(options.compute_ms / 1e3)
        else:
            compute = chosen.compute(options.repeats, meet, agree)
        shown.advance("measured the step")
        grads, found, facts = drawn(chosen.shapes), {}, {}
        for spec in specs:
            found[spec] = codecs.measure(
                spec, grads, situation.size, options.repeats, meet, agree, compute.shares
            )
            shown.advance(f"timed {spec}")
        del grads
        for spec in specs:
            facts[spec] = facts_of(spec, chosen, situation)
            shown.advance(f"error of {spec}")
    if group is None or group.rank == 0:
        choices = modelled(found, facts, compute, situation.network)
        answer = verdict(choices, options.quality, str(situation))
        report.show(choices, answer, str(situation), chosen, compute, options.quality)
        if options.plot:
            title = f"{chosen.name}, {situation.workers} workers"
            curves = curves_of(found, compute, situation)
            picture.draw(options.plot, title, curves, compute.seconds, situation.link)
        if options.json:
            _write(options, situation, chosen, compute, choices, answer)
    return 0


def modelled(
    found: Codecs, facts: Mapping[str, Facts], compute: Compute, network: Network
) -> list[Choice]:
    """The modelled step of each method, the fastest first."""
    choices = []
    for spec, buckets in found.items():
        every = [each for bucket in buckets for each in bucket.collectives]
        level, why_not = level_of(facts[spec])
        time = step_time(compute, buckets, network)
        choices.append(Choice(spec, network.sent(every), time, level, why_not, facts[spec].vnmse))
    return sorted(choices, key=lambda choice: choice.time.seconds)


def facts_of(spec: str, chosen: Subject, situation: Situation) -> Facts:
    """What is known about a method on the subject's gradients, with its error measured."""
    ((_, compressor, memory),) = settings(spec).at(0).routes
    positions = errors.sample(chosen.shapes)
    count = min(situation.size, errors.MOST_WORKERS)
    grads = [chosen.gradients(positions, worker) for worker in range(count)]
    specs = [tf.TensorSpec(chosen.shapes[i], tf.float32) for i in positions]
    elements = sum(math.prod(chosen.shapes[i]) for i in positions)
    return Facts(
        name_of(spec),
        8 * compressor.group_nbytes(specs) / elements,
        memory.needs_sent,
        errors.vnmse(spec, grads),
        to_begin_with(compressor, memory),
        errors.peak(grads) * situation.workers if chosen.own else None,
    )


def curves_of(found: Codecs, compute: Compute, situation: Situation) -> dict[str, list[float]]:
    """Seconds of a step at each of `picture.RATES`, by method."""
    latency = situation.link.latency if situation.link else 0.0
    networks = [situation.over(Link(rate, latency)) for rate in picture.RATES]
    return {
        spec: [step_time(compute, buckets, network).seconds for network in networks]
        for spec, buckets in found.items()
    }


def _checked(options: argparse.Namespace) -> list[str]:
    """The methods, with none, with which the table compares; complains before any measurement."""
    admitted("safe", options.quality)
    if options.plot:
        picture.needed()
    if options.repeats < 1:
        raise ValueError(f"--repeats is at least 1, not {options.repeats}.")
    if options.compute_ms is not None and not 0 <= options.compute_ms < math.inf:
        raise ValueError(f"--compute-ms is a time, 0 or more, not {options.compute_ms:g}.")
    specs = list(dict.fromkeys(["none", *options.methods]))
    for spec in specs:
        if len(settings(spec).stages) > 1:
            raise ValueError(f"{spec!r} changes from step to step: name one method at a time.")
    return specs


def _alone() -> None:
    """What a process without others waits for."""


def _write(
    options: argparse.Namespace,
    situation: Situation,
    chosen: Subject,
    compute: Compute,
    choices: Sequence[Choice],
    answer: Verdict,
) -> None:
    sixteen = best_sixteen(choices)
    record = {
        "machine": machine(situation.workers, options.repeats, chosen.stated),
        "subject": chosen.name,
        "workers": situation.workers,
        "per_host": situation.per_host,
        "link": situation.link and dataclasses.asdict(situation.link),
        "host": {kind: dataclasses.asdict(cost) for kind, cost in situation.host.items()},
        "compute": dataclasses.asdict(compute),
        "quality": options.quality,
        "methods": [dataclasses.asdict(choice) for choice in choices],
        "best_16_bit": sixteen and sixteen.spec,
        **dataclasses.asdict(answer),
    }
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
