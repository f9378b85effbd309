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
from grace_tf.line.inputs import local, plain
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
        momentum = _read(each, "momentum")
        if momentum:
            raise ValueError(
                f"The memory {spec!r} has a momentum of its own, so that {name} must have none: "
                f"write {name}(..., momentum=0.0) and give its {momentum:.6g} to the memory, as in "
                f'memory="{memory.name}:{memory.momentum_field}={momentum:.6g}".'
            )
        if _read(each, "beta_1"):
            warnings.warn(
                f"The memory {spec!r} has a momentum of its own, and {name} smooths its aggregates "
                f'once more by beta_1; memory="{served}" leaves that to {name} alone.',
                stacklevel=4,
            )


def tell_far_settings(optimizer: Any, aggregator: Aggregator) -> None:
    """One log line, in the first step, where rate or momentum are far from what a method needs.

    What cannot be read while the step is traced is not judged.
    """
    if aggregator.told_of_settings:
        return
    aggregator.told_of_settings = True
    for _, compressor, memory in aggregator.settings.at(0).routes:
        if not to_begin_with(compressor, memory):
            continue
        name, momentum = type(optimizer)._plain_class.__name__, _read(optimizer, "momentum") or 0.0
        if words := far_off(compressor, memory, _read(optimizer, "learning_rate"), momentum):
            wanted = to_begin_with(compressor, memory)
            _LOG.warning("%s with %s has %s: begin with %s.", compressor, name, words, wanted)
            return


def _read(optimizer: Any, name: str) -> float | None:
    """A hyperparameter's value before the next step; None where it cannot be read.

    Keras 2's legacy optimizers hold it in a variable or a function.  A learning rate may be a
    schedule.
    """
    try:
        with tf.init_scope():
            given = getattr(optimizer, name, None)
            if callable(given):
                given = given(optimizer.iterations) if name == "learning_rate" else given()
            return None if given is None else float(np.asarray(local(plain(given))))
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return None
