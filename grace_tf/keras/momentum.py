"""Refuses a second momentum beside that of a memory; warns of rates that a method cannot use."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
import tensorflow as tf

from grace_tf.aggregation.aggregator import Aggregator
from grace_tf.core.specs import spec_of
from grace_tf.keras.optimizers import parts
from grace_tf.line.optimizer_settings import far_off, to_begin_with
from grace_tf.line.settings import Settings

_LOG = logging.getLogger("grace_tf")


def refuse_second_momentum(optimizer: Any, wanted: Settings) -> None:
    """Raises ValueError where a memory and the optimizer, or an inner one, both have a momentum.

    Optimizers that smooth gradients in another way, such as Adam, get a warning.
    """
    stages = [stage for _, stage in wanted.stages]
    pairs = [(c, memory) for s in stages for _, c, memory in s.routes if memory.has_momentum]
    if not pairs:
        return
    compressor, memory = pairs[-1]
    spec, served = spec_of(memory), "residual" if compressor.nonexpansive else "none"
    for each in (optimizer, *parts(optimizer)):
        name = type(each).__name__
        momentum = _number(each, "momentum")
        if momentum:
            raise ValueError(
                f"The memory {spec!r} has a momentum of its own, so that {name} must have none: "
                f"write {name}(..., momentum=0.0) and give its {momentum:.6g} to the memory, as in "
                f'memory="{memory.name}:{memory.momentum_field}={momentum:.6g}".'
            )
        if _number(each, "beta_1"):
            warnings.warn(
                f"The memory {spec!r} has a momentum of its own, and {name} smooths its aggregates "
                f'once more by beta_1; memory="{served}" leaves that to {name} alone.',
                stacklevel=4,
            )


def tell_far_settings(optimizer: Any, aggregator: Aggregator) -> None:
    """One log line, in the first step, where rate or momentum are far from what a method needs.

    A learning rate that cannot be read while the step is traced is not judged.
    """
    if aggregator.told_of_settings:
        return
    aggregator.told_of_settings = True
    for _, compressor, memory in aggregator.settings.at(0).routes:
        if not to_begin_with(compressor, memory):
            continue
        name, momentum = type(optimizer)._plain_class.__name__, _number(optimizer, "momentum")
        if words := far_off(compressor, memory, _rate(optimizer), momentum):
            wanted = to_begin_with(compressor, memory)
            _LOG.warning("%s with %s has %s: begin with %s.", compressor, name, words, wanted)
            return


def _rate(optimizer: Any) -> float | None:
    """The learning rate of the next step; None where it cannot be read."""
    try:
        with tf.init_scope():
            given = optimizer.learning_rate
            given = given(optimizer.iterations) if callable(given) else given
            return float(np.asarray(given))
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return None


def _number(optimizer: Any, name: str) -> float:
    """A hyperparameter's value, in legacy optimizers a variable or function perhaps; 0 if none."""
    value = getattr(optimizer, name, None)
    value = value() if callable(value) else value
    return 0.0 if value is None else float(value)
