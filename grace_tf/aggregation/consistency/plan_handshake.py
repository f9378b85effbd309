"""Compares the plan and the optimizer of all workers in the first step.

Workers that disagree would train different models without an error.  So the digests of the plans
and of the optimizers are gathered eagerly, also while TensorFlow traces a graph, and every worker
raises the same sentence where they differ.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from grace_tf.line import wire
from grace_tf.line.plan import Plan
from grace_tf.transports.group import Group
from grace_tf.transports.lifeline import versions
from grace_tf.transports.pieces import boxes

CONFIG_WORDS = 24  # words for the optimizer's settings: one each; the last word covers the rest

_WAYS_OUT = (
    ("version", f"their versions differ ({versions.HERE} here): install the same ones everywhere"),
    ("seed", "the seeds differ: give wrap() or Aggregator() the same seed everywhere"),
    ("optimizer", "the optimizers differ: wrap the same optimizer everywhere"),
    (
        "plan",
        "the plans differ: wrap the same model with the same compressor and keywords everywhere",
    ),
    (
        "names",
        "they reduce the gradients of different variables, {variable!r} here: make and train the "
        "same models in the same order everywhere; where one worker has made a model more, Keras "
        "has counted further there, so give layers names or call keras.utils.clear_session() on "
        "all workers before",
    ),
    (
        "keys",
        "they have made different numbers of optimizers or Aggregators before the one that trains "
        "{variable!r}: make and train the same models in the same order everywhere",
    ),
    (
        "scaled",
        "only some of them train {variable!r} inside a LossScaleOptimizer: use it, or mixed "
        "precision, everywhere or nowhere",
    ),
    (
        "measured",
        "only some of them measure the steps that train {variable!r}, or other ones: give "
        "grace_tf.keras.Monitor, or call Aggregator.measure, alike on all workers, since what is "
        "measured is a sum over all of them",
    ),
)


@dataclasses.dataclass(frozen=True)
class OptimizerInfo:
    """The facts of an optimizer that workers compare; without arguments, those of a custom loop.

    `config` holds its settings, without `rate`, the learning rate where that is a number.
    `variables` are the optimizer's variables.  `scaled`: whether its updates are traced inside a
    LossScaleOptimizer, which communicates before them.  `measured`: how steps measure themselves.
    """

    optimizer: str = ""
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rate: float | None = None
    variables: Sequence[Any] = ()
    scaled: bool = False
    measured: str = ""


def described(optimizer_info: Callable[[], OptimizerInfo]) -> OptimizerInfo:
    """Calls `optimizer_info` outside the traced function, since settings may be variables."""
    with tf.init_scope():
        return optimizer_info()


def compare_plans(
    group: Group, plan: Plan, optimizer_info: OptimizerInfo, reduce: str = ""
) -> None:
    """Raises RuntimeError, on every worker of the group, where plans or optimizers differ.

    `reduce` is "mean" or "sum", as the gradients are reduced.
    """
    settings = sorted(optimizer_info.config)
    table = group.handshake(_words(plan, optimizer_info, reduce), "the first step's comparison")
    variable = plan.paths[0] if plan.paths else "none"
    ways_out = [way_out.format(variable=variable) for _, way_out in _WAYS_OUT]
    named = settings[: CONFIG_WORDS - 1] + ["other settings"] * (len(settings) >= CONFIG_WORDS)
    ways_out += [
        f"their {optimizer_info.optimizer} has different settings ({name}): make it alike "
        "everywhere"
        for name in named
    ]
    for column, way_out in zip(np.transpose(table), ways_out):
        odd = [worker for worker, value in enumerate(column) if value != column[0]]
        if odd:
            raise RuntimeError(
                f"Workers cannot train together, {way_out} "
                f"(worker {', '.join(map(str, odd))} of {len(table)} differs from worker 0)."
            )


def _words(plan: Plan, optimizer_info: OptimizerInfo, reduce: str) -> list[int]:
    settings = sorted(optimizer_info.config.items())
    one_by_one, others = settings[: CONFIG_WORDS - 1], settings[CONFIG_WORDS - 1 :]
    config = [digest_of_text(f"{key}={_text(value)}") for key, value in one_by_one]
    config += [digest_of_text(_text(others))] * bool(others)
    return [
        digest_of_text(f"{versions.HERE}/{wire.VERSION}"),
        plan.seed,
        digest_of_text(optimizer_info.optimizer),
        digest_of_text(f"{plan.layout}/{reduce}"),
        plan.digest,
        plan.first_key,
        int(optimizer_info.scaled),
        digest_of_text(optimizer_info.measured),
        *config,
        *[0] * (CONFIG_WORDS - len(config)),
    ]


def digests_of_settings(optimizer_info: OptimizerInfo) -> dict[str, int]:
    """A digest of each of an optimizer's settings, without the learning rate."""
    return {
        key: digest_of_text(_text(value)) for key, value in sorted(optimizer_info.config.items())
    }


def _text(value: Any) -> str:
    """A setting as text: equal settings give equal texts; an object gives the name of its class."""
    return json.dumps(_without_code(value), sort_keys=True, default=_told)


def _without_code(value: Any) -> Any:
    """The value without the bytecode of lambdas, which holds the path of their file."""
    if isinstance(value, Mapping):
        if value.get("class_name") == "__lambda__":
            return "lambda"
        return {str(key): _without_code(held) for key, held in value.items()}
    return [_without_code(held) for held in value] if isinstance(value, (list, tuple)) else value


def _told(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return getattr(value, "__qualname__", type(value).__qualname__)


def digest_of_arrays(arrays: Sequence[np.ndarray]) -> int:
    """A 56-bit digest of arrays: shapes, dtypes and bits."""
    return _digest((each.dtype, each.shape, [each.tobytes()]) for each in arrays)


def digest_of_variables(variables: Sequence[tf.Variable]) -> int:
    """The `digest_of_arrays` of the variables' values, read in pieces of 16 MiB."""
    return _digest(
        (each.dtype.as_numpy_dtype, each.shape, (box.read().data for box in boxes(each)))
        for each in variables
    )


def _digest(arrays: Iterable[tuple[Any, Any, Iterable[Any]]]) -> int:
    """A digest of arrays that are given as (dtype, shape, the bytes in pieces)."""
    hashed = hashlib.blake2b(digest_size=7)
    for dtype, shape, pieces in arrays:
        hashed.update(f"{np.dtype(dtype)}{tuple(shape)}".encode())
        for piece in pieces:
            hashed.update(piece)
    return int.from_bytes(hashed.digest(), "little")


def digest_of_text(text: str) -> int:
    """A 56-bit digest of a text."""
    return digest_of_arrays([np.frombuffer(text.encode(), np.uint8)])


def float_word(value: float) -> int:
    """The bits of a float64 as a signed word."""
    return struct.unpack("<q", struct.pack("<d", value))[0]
