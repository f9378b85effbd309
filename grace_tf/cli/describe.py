"""Tables of methods and memories from the registry; the wire parts and bytes of a spec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from grace_tf.core import registry
from grace_tf.core.compressor import Compressor
from grace_tf.core.context import Context
from grace_tf.core.specs import head, name_of, spec_of
from grace_tf.line.plan import make_plan
from grace_tf.line.rehearsal import Counted
from grace_tf.line.settings import Settings, settings
from grace_tf.testing.workers import Workers

_TRAITS = (
    "unbiased",
    "nonexpansive",
    "commutes_with_sum",
    "lossless",
    "homogeneous",
    "elementwise",
    "recompressible",
    "fixed_size",
)
_MILLION = tf.TensorSpec([1000, 1000], tf.float32)
_ALONE = Context((_MILLION,), (0,), 0, 0, 1, 0).stored()

METHOD_COLUMNS = ("method", "family", "bits per element", "memory", "traits", "paper")
MEMORY_COLUMNS = ("memory", "family", "bits per element", "needs", "paper")
WIRE_COLUMNS = ("part", "dtype", "elements", "bytes")
STAGE_COLUMNS = ("from step", "compressor", "memory", "bytes a step", "of fp32")


def method_rows(links: bool = False) -> list[list[str]]:
    """One row per registered name, at its defaults; with `links`, papers are Markdown links.

    Bits per element: one worker's payload for a matrix of 1000 × 1000 float32.
    """
    rows = []
    for entry in registry.entries():
        compressor, memory = registry.resolve(entry.name)
        bits = 8 * compressor.nbytes(_MILLION) / _MILLION.shape.num_elements()
        name = f"`{entry.name}`" if links else entry.name
        paper = _link(entry.paper) if links else entry.paper
        memory_spec = spec_of(registry.get_memory(memory))
        rows.append([name, entry.family, f"{bits:.3g}", memory_spec, traits(compressor), paper])
    return rows


def memory_rows() -> list[list[str]]:
    """One row per registered memory, and per example of it.

    Bits per element: one worker's state between steps for a matrix of 1000 × 1000.
    """
    rows = []
    for name in registry.memories():
        for spec in (name, *registry.get_memory(name).examples):
            memory = registry.get_memory(spec)
            (stored,) = memory.store([memory.init_state(_MILLION)], _ALONE)
            nbytes = sum(leaf.shape.num_elements() * leaf.dtype.size for leaf in stored.values())
            bits = 8 * nbytes / _MILLION.shape.num_elements()
            wanted = {"nonexpansive": memory.requires_nonexpansive}
            wanted["unbiased"] = memory.requires_unbiased
            needs = ", ".join(trait for trait, wants in wanted.items() if wants) or "-"
            rows.append([spec, memory.family, f"{bits:.3g}", needs, memory.paper])
    return rows


def name_in_tables(method: str, compressor: Compressor) -> str:
    """A method's name in tables: its compressor's spec; of a recipe the name as it was given."""
    return str(compressor) if name_of(method) == compressor.name else method


def traits(compressor: Compressor) -> str:
    """The traits a compressor claims, as words."""
    claimed = [trait.replace("_", " ") for trait in _TRAITS if getattr(compressor, trait)]
    if compressor.aggregates != "sum":
        claimed.append(compressor.aggregates)
    return ", ".join(claimed) or "-"


def wire_rows(compressor: Compressor, shape: Sequence[int]) -> list[list[str]]:
    """One row per payload part of a float32 tensor of this shape, and one for the total."""
    spec = tf.TensorSpec(shape, tf.float32)
    parts = compressor.wire(spec)
    rows = [
        [name, part.dtype.name, f"{part.shape[0]:,}", f"{part.shape[0] * part.dtype.size:,}"]
        for name, part in parts.items()
    ]
    elements = spec.shape.num_elements()
    return [
        *rows,
        ["payload, padded to 32-bit words", "", "", f"{compressor.nbytes(spec):,}"],
        ["fp32", "float32", f"{elements:,}", f"{4 * elements:,}"],
    ]


def stage_rows(wanted: Settings, shape: Sequence[int]) -> list[list[str]]:
    """One row for each stage of a schedule, or of "auto", on a float32 tensor of this shape."""
    spec, rows = tf.TensorSpec(shape, tf.float32), []
    for first, stage in wanted.stages:
        ((_, compressor, memory),) = stage.routes
        nbytes, share = f"{compressor.nbytes(spec):,}", fp32_share(compressor, shape)
        rows.append([f"{first:,}", str(compressor), spec_of(memory), nbytes, share])
    return rows


def announced_bytes(wanted: Settings, variables: Sequence[Any]) -> int:
    """Bytes that one of several workers hands to collectives in a step for these gradients.

    Static: from the plan alone, flags included; of a schedule, in its first stage.
    """
    paths = [str(getattr(v, "path", v.name)) for v in variables]
    specs = [tf.TensorSpec(v.shape, v.dtype) for v in variables]
    plan = make_plan(wanted.at(0), paths, specs, range(len(paths)))
    payloads = sum(group.compressor.group_nbytes(group.specs) for group in plan.groups)
    return payloads + _FLAG_BYTES * len(plan.buckets)


def of_a_model(compressor: Compressor, shapes: Sequence[Sequence[int]]) -> tuple[int, float]:
    """(bytes that one of several workers sends in a step for float32 variables of these shapes,
    how many times as many the variables have)."""
    specs = [tf.TensorSpec(shape, tf.float32, f"v{i}") for i, shape in enumerate(shapes)]
    sent = announced_bytes(settings(compressor), specs)
    return sent, 4 * sum(spec.shape.num_elements() for spec in specs) / sent


def sent_by_a_worker(
    compressor: Compressor, shapes: Sequence[Sequence[int]], size: int
) -> tuple[int, str]:
    """(bytes that one of `size` workers sends in a step for float32 gradients of these shapes, the
    collectives that carry them).

    One worker's part of a step is traced, over a transport that carries nothing.
    """
    workers = Workers(size, compressor, transport=Counted(size), min_elements=1024)
    specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    tf.function(workers.step, autograph=False).get_concrete_function([specs])
    kinds = " and ".join(dict.fromkeys(handed.kind for handed in workers.handed))
    kinds = kinds.replace("_", " ")
    ways = f"two hops ({kinds})" if "all to all" in kinds else kinds
    return round(sum(handed.sent(size) for handed in workers.handed)), ways


def defaults_text(name: str) -> str:
    """The spec of a registered method with every hyperparameter that it has, at its default."""
    (entry,) = [entry for entry in registry.entries() if entry.name == name]
    return head(name, entry.parameters)


def step_text(compressor: Compressor, shape: Sequence[int]) -> str:
    """What each of several workers sends in a step of this tensor, as text."""
    nbytes = compressor.nbytes(tf.TensorSpec(shape, tf.float32))
    return (
        f"{nbytes:,} bytes from each of several workers, and 2 or 4 that say whether the gradient "
        "is finite"
    )


def bytes_text(count: float) -> str:
    """Formats a number of bytes: 1536 is "1.5 KiB"."""
    if count < 1024:
        return f"{count:.0f} B"
    if count < 1024**2:
        return f"{count / 1024:.1f} KiB"
    return f"{count / 1024**2:.1f} MiB"


def fp32_share(compressor: Compressor, shape: Sequence[int]) -> str:
    """Returns the payload's size as a fraction of the float32 tensor's: "1/50"."""
    spec = tf.TensorSpec(shape, tf.float32)
    return f"1/{4 * spec.shape.num_elements() / compressor.nbytes(spec):.4g}"


def _link(paper: str) -> str:
    if paper.startswith("doi:"):
        return f"[{paper}](https://doi.org/{paper.removeprefix('doi:')})"
    if not paper.startswith("arXiv:"):
        return paper
    return f"[{paper}](https://arxiv.org/abs/{paper.removeprefix('arXiv:')})"


_FLAG_BYTES = 4  # the agreed finite flag that ends a bucket's first buffer
