"""Measures a user's whole step: an `Aggregator` on all gradients of a model, with one worker.

The time includes all that happens between backward and the optimizer: compensation, compression,
decompression, state and flags.
Times are medians of repeats interleaved over methods, in multiples of a plain read of one tensor as
large as all gradients together, in the same run.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from grace_tf import ops
from grace_tf.aggregation.aggregator import Aggregator
from grace_tf.cli.bench.machine import seconds
from grace_tf.cli.describe import name_in_tables
from grace_tf.cli.models import MODELS
from grace_tf.cli.tables import print_table
from grace_tf.core.specs import spec_of

COLUMNS = ("method", "memory", "ms", "reads", "nodes/variable", "tracing s", "bytes/step")


@dataclasses.dataclass
class Step:
    """One method's step over all gradients."""

    method: str  # as it was given
    aggregate: Aggregator
    function: Callable[[], Any]
    nodes: float  # a variable
    tracing: float  # seconds
    seconds: list[float] = dataclasses.field(default_factory=list)

    def record(self, model: str, elements: int, read: float) -> dict[str, Any]:
        """The step as a JSON-able line; `read` is the median of the plain read, in seconds."""
        ((_, compressor, memory),) = self.aggregate.settings.routes
        median = statistics.median(self.seconds)
        return {
            "kind": "step",
            "model": model,
            "method": name_in_tables(self.method, compressor),
            "memory": spec_of(memory),
            "elements": elements,
            "read_ms": 1e3 * read,
            "step_ms": 1e3 * median,
            "step_reads": median / read,
            "nodes_per_variable": self.nodes,
            "tracing_seconds": self.tracing,
            "bytes_per_step": self.aggregate.bytes_per_step,
        }


def measure(
    methods: Sequence[str],
    model: str,
    repeats: int,
    advance: Callable[[str], Any] = lambda doing: None,
) -> list[dict[str, Any]]:
    """Records of the whole step of all methods on the gradients of a model."""
    shapes = MODELS[model]()
    grads = [1e-3 * tf.random.stateless_normal(s, [i, 0]) for i, s in enumerate(shapes)]
    whole = tf.concat([tf.reshape(g, [-1]) for g in grads], 0)
    read = tf.function(lambda: ops.all_finite([whole]), autograph=False).get_concrete_function()
    steps = []
    for method in methods:
        steps.append(traced(method, grads))
        advance(f"tracing {method}")
    reads: list[float] = []
    for repeat in range(-1, repeats):  # the first round is the warm-up
        reads.append(seconds(read))
        for step in steps:
            took = seconds(step.function)
            step.seconds += [took] if repeat >= 0 else []
        advance(f"repeat {repeat + 1} of {repeats}")
    median = statistics.median(reads[1:])
    return [step.record(model, whole.shape[0], median) for step in steps]


def traced(method: str, grads: Sequence[tf.Tensor]) -> Step:
    """The step of one method on these gradients."""
    variables = [tf.Variable(tf.zeros(g.shape), name=f"v{i}") for i, g in enumerate(grads)]
    aggregate = Aggregator(method, variables)
    began = time.perf_counter()
    function = tf.function(lambda *grads: aggregate(grads, variables), autograph=False)
    concrete = function.get_concrete_function(*grads)
    tracing = time.perf_counter() - began
    # The constant part is small beside the part that grows with the number of variables.
    nodes = count_nodes(concrete.graph) / len(variables)
    return Step(method, aggregate, lambda: concrete(*grads), nodes, tracing)


def count_nodes(graph: tf.Graph) -> int:
    """The nodes of a graph and of all functions that it calls."""
    definition = graph.as_graph_def()
    called = definition.library.function
    return len(definition.node) + sum(len(function.node_def) for function in called)


def report(records: Sequence[dict[str, Any]]) -> None:
    """The table of a run."""
    header, *steps = records
    rows = [
        [
            step["method"],
            step["memory"],
            f"{step['step_ms']:.1f}",
            f"{step['step_reads']:.2f}",
            f"{step['nodes_per_variable']:.1f}",
            f"{step['tracing_seconds']:.1f}",
            f"{step['bytes_per_step']:,}",
        ]
        for step in steps
    ]
    where = f"{header['cpu']}, {header['cores']} cores, TensorFlow {header['tensorflow']}"
    model, read = steps[0]["model"], steps[0]["read_ms"]
    title = (
        f"A whole step of {model}, alone; one read is {read:.1f} ms by {header['read']}, {where}"
    )
    print_table(title, COLUMNS, rows)
