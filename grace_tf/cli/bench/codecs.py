"""Measures the codecs: compress, decompress, aggregate, and the whole from compensate to settle.

Everything runs through tf.function on one gradient tensor.  Times are medians of repeats that are
interleaved over methods after a warm-up, beside one plain read of the tensor in the same run.  All
include the call of the function, which takes most of the time for small tensors.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from grace_tf import ops
from grace_tf.cli.bench import step
from grace_tf.cli.bench.machine import default_operations, machine, seconds
from grace_tf.cli.describe import name_in_tables
from grace_tf.cli.tables import print_table, progress
from grace_tf.core import registry
from grace_tf.core.compressor import Compressor
from grace_tf.core.context import Context
from grace_tf.core.memory import Memory
from grace_tf.core.rounds import Gather
from grace_tf.core.scheduled import unscheduled
from grace_tf.core.specs import spec_of
from grace_tf.line.exchange import composed

_GRADIENT = "normal * exp(normal) * 1e-3, one matrix as square as the size allows"
STAGES = ("compress", "decompress", "aggregate", "step")


@dataclasses.dataclass
class Case:
    """One method on one tensor with one implementation of the operations, and its measurements."""

    method: str  # as it was given
    compressor: Compressor
    memory: Memory
    shape: tuple[int, ...]
    operations: str
    functions: dict[str, Callable[[], Any]]
    error: float
    seconds: dict[str, list[float]]

    def record(self, read: float) -> dict[str, Any]:
        """The case as a JSON-able line; `read` is the median of the plain read, in seconds."""
        spec = tf.TensorSpec(self.shape, tf.float32)
        medians = {stage: statistics.median(times) for stage, times in self.seconds.items()}
        return {
            "kind": "codec",
            "method": name_in_tables(self.method, self.compressor),
            "memory": spec_of(self.memory),
            "shape": list(self.shape),
            "elements": spec.shape.num_elements(),
            "operations": self.operations,
            "wire_bytes": self.compressor.nbytes(spec),
            "relative_error": self.error,
            "read_ms": 1e3 * read,
            **{f"{stage}_ms": 1e3 * seconds for stage, seconds in medians.items()},
            **{f"{stage}_reads": seconds / read for stage, seconds in medians.items()},
        }


def main(options: argparse.Namespace) -> int:
    """Measures, prints the table, and appends JSON lines where asked."""
    sizes = [_size(text) for text in options.sizes.split(",")]
    for name in ("workers", "repeats"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} is at least 1, not {getattr(options, name)}.")
    methods = options.methods or registry.available()
    for method in methods:
        registry.get(method)  # complain before the first measurement
    header = machine(1 if options.model else options.workers, options.repeats, _GRADIENT)
    records = [header]
    if options.model:
        with progress("bench", len(methods) + options.repeats + 1) as shown:
            records += step.measure(methods, options.model, options.repeats, shown.advance)
        step.report(records)
    else:
        records += _codecs(options, sizes, methods)
        report(records)
    if options.json:
        with open(options.json, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
    return 0


def _codecs(options: argparse.Namespace, sizes: Sequence[int], methods: Sequence[str]) -> list:
    records = []
    cases = len(methods) * len(_implementations(options.against))
    with progress("bench", len(sizes) * (cases + options.repeats + 1)) as shown:
        for size in sizes:
            measured = (methods, size, options.workers, options.repeats, options.against)
            records += measure(*measured, shown.advance)
            shown.say(f"{size:,} elements: done.")
    return records


def measure(
    methods: Sequence[str],
    size: int,
    workers: int,
    repeats: int,
    against: str | None = None,
    advance: Callable[[str], Any] = lambda doing: None,
) -> list[dict[str, Any]]:
    """Records of all methods on one gradient of `size` elements.

    `advance` is called after each method is traced and after each repeat, never during one.
    """
    x = _gradient(_shape(size))
    cases = []
    for method in methods:
        for operations in _implementations(against):
            cases.append(prepare(method, x, workers, operations))
            advance(f"{size:,} elements: tracing {method}")
    read = tf.function(_read, autograph=False).get_concrete_function(x)
    reads: list[float] = []
    for repeat in range(-1, repeats):  # the first round is the warm-up
        reads.append(seconds(lambda: read(x)))
        for case in cases:
            for stage, function in case.functions.items():
                took = seconds(function)
                if repeat >= 0:
                    case.seconds.setdefault(stage, []).append(took)
        advance(f"{size:,} elements: repeat {repeat + 1} of {repeats}")
    return [case.record(statistics.median(reads[1:])) for case in cases]


def prepare(method: str, x: tf.Tensor, workers: int, operations: str) -> Case:
    """Traces the stages of one method, with the operations of one implementation."""
    compressor, memory_name = registry.resolve(method)
    compressor, memory = unscheduled(compressor), registry.get_memory(memory_name)
    spec = tf.TensorSpec(x.shape, x.dtype)
    context = Context((spec,), (0,), tf.constant(3, tf.int64), 0, workers, 0)
    with ops.using(operations):
        states = compressor.init_state(spec, context)
        memory_states = memory.init_state(spec)

        def whole(x, m, s):
            outcome = _alone(composed(compressor, memory, [x], [m], [s], context), workers)
            return outcome.aggregates, outcome.memories, outcome.states

        def settled(x, s):
            return _alone(compressor.rounds([x], [s], context), workers)[1][0]

        functions = _stages(compressor, context, x, workers) if compressor.one_round else {}
        functions["step"] = _traced(whole, x, memory_states, states)
        sent = _traced(settled, x, states)
        error = _relative_error(x, sent(), compressor.aggregates)
    return Case(method, compressor, memory, tuple(x.shape), operations, functions, error, {})


def report(records: Sequence[dict[str, Any]]) -> None:
    """The table of codecs: milliseconds and, in brackets, how many plain reads that is."""
    header, *cases = records
    rows = []
    for case in cases:
        times = [
            f"{case[f'{s}_ms']:.3g} ({case[f'{s}_reads']:.1f})" if f"{s}_ms" in case else "-"
            for s in STAGES
        ]
        bits = 8 * case["wire_bytes"] / case["elements"]
        cells = [f"{bits:.3g}", f"{case['relative_error']:.3g}", case["operations"]]
        rows.append([case["method"], f"{case['elements']:,}", *times, *cells])
    where = f"{header['cpu']}, {header['cores']} cores, TensorFlow {header['tensorflow']}"
    title = f"{header['workers']} workers, ms (and plain reads by {header['read']}) on {where}"
    print_table(title, ("method", "elements", *STAGES, "bits/element", "error", "operations"), rows)


def _stages(
    compressor: Compressor, context: Context, x: tf.Tensor, workers: int
) -> dict[str, Callable[[], Any]]:
    """compress, decompress and aggregate of a method of one round."""
    public = context.public()
    compress = _traced(lambda x: compressor.compress(x, context), x)
    payload = compress()
    if compressor.commutes_with_sum:  # the collective sums payloads; `aggregate` only decodes
        decompress = _traced(lambda p: compressor.decompress(p, public), payload)
        return {"compress": compress, "decompress": decompress}
    payloads = {name: tf.stack([part] * workers) for name, part in payload.items()}
    return {
        "compress": compress,
        "decompress": _traced(lambda p: compressor.decompress(p, public), payload),
        "aggregate": _traced(lambda p: compressor.aggregate(p, public), payloads),
    }


def _alone(rounds: Iterator, workers: int) -> tuple:
    """Runs rounds where all workers send the same; the reply to a sum is one worker's payload."""
    request = next(rounds)
    while True:
        replies = request.payloads
        if isinstance(request, Gather):
            replies = [{k: tf.stack([v] * workers) for k, v in p.items()} for p in replies]
        try:
            request = rounds.send(replies)
        except StopIteration as stop:
            return stop.value


def _relative_error(x: tf.Tensor, sent: tf.Tensor, aggregates: str) -> float:
    """‖x − sent‖ / ‖x‖; a consensus has no scale, so it is scaled for the least error."""
    if aggregates != "sum":
        sent *= tf.reduce_sum(x * sent) / tf.reduce_sum(sent * sent)
    return float(tf.norm(x - sent) / tf.norm(x))


def _traced(function: Callable, *arguments: Any) -> Callable[[], Any]:
    concrete = tf.function(function, autograph=False).get_concrete_function(*arguments)
    return lambda: concrete(*arguments)


def _read(x: tf.Tensor) -> tf.Tensor:
    return ops.all_finite([x]) if default_operations() == "native" else tf.reduce_max(x)


def _implementations(against: str | None) -> list[str]:
    """The operations to measure with, the default ones first."""
    default = default_operations()
    return [default, against] if against and against != default else [default]


def _gradient(shape: tuple[int, int]) -> tf.Tensor:
    first = tf.random.stateless_normal(shape, [1, 2])
    return 1e-3 * first * tf.exp(tf.random.stateless_normal(shape, [3, 4]))


def _shape(size: int) -> tuple[int, int]:
    columns = next(c for c in range(math.isqrt(size), 0, -1) if size % c == 0)
    return size // columns, columns


def _size(text: str) -> int:
    try:
        size = float(text)
    except ValueError:
        size = -1
    if size < 1 or size != int(size):
        raise ValueError(f"--sizes takes numbers of elements such as 1e5,25e6, not {text!r}.")
    return int(size)
