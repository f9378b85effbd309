"""Schedules: hyperparameters, and compressors, that change during training.

    grace_tf.wrap(optimizer, "topk", ratio=grace_tf.schedules.warmup(400, 0.001))
    grace_tf.wrap(optimizer, grace_tf.schedules.dense_first(1000, "powersgd:rank=4"))

A schedule stands for the value of any hyperparameter, or for the compressor.  Specs say the same:

    topk:ratio=0.25@0/0.06@100/0.01@200     values, each with the step from which it holds
    topk:ratio=0.001,warmup=400             `warmup` of its ratio; any method that has one takes it
    topk:ratio=0.001,dense=1000             the first 1000 steps uncompressed; any method takes it
    none@0;powersgd:rank=4@1000             compressors, each with its first step

Steps are the optimizer's iterations for `grace_tf.wrap`, and elsewhere the steps that an
`Aggregator` has committed.  A traced step holds all stages and runs the active one, so that nothing
is traced again, also with `steps_per_execution`.  The next stage goes on with the residuals where
it has the same memory.  `bytes_per_step` belongs to the stage that ran last, and the logger
"grace_tf" says at level INFO which stage begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grace_tf.core.schedule import Schedule, warm_up
from grace_tf.core.schedule import piecewise as _piecewise

__all__ = ["constant", "dense_first", "piecewise", "warmup"]


def constant(value: Any) -> Schedule:
    """The same value in every step."""
    return Schedule((0,), (value,))


def piecewise(values: Mapping[int, Any]) -> Schedule:
    """A value from each given step on: `{0: 0.25, 100: 0.06}` or `{0: "none", 1000: "qsgd"}`.

    Args:
      values: `{first step: value}`, in the order of the steps, of which the first is 0.
    Raises: ValueError or TypeError for other steps.
    """
    return _piecewise(values)


def warmup(steps: int, ratio: float) -> Schedule:
    """DGC's warm-up of a ratio: 0.25 first, then down by equal factors in four equal stages.

    For 0.001 that is 0.25, 0.0629, 0.0158, 0.00398 and then 0.001, as sparsity 75 %, 93.7 %,
    98.4 %, 99.6 % and 99.9 % (Lin et al. 2018, arXiv:1712.01887, sections 3.3, 4.1: four epochs).

    Args:
      steps: the number of steps until `ratio` is reached.
      ratio: the final ratio, below 0.25.
    Raises: ValueError or TypeError for less than 4 steps or another ratio.
    """
    return warm_up(steps, ratio)


def dense_first(steps: int, compressor: Any) -> Schedule:
    """A compressor that begins after `steps` uncompressed steps.

    Args:
      steps: at least 1.
      compressor: an instance, a spec or a schedule of compressors, whose own steps count from 0.
    Raises: ValueError or TypeError for another number of steps.
    """
    return Schedule((0, steps), ("none", compressor))
