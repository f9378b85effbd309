"""`wrap` and `unwrap`: replace the class of the user's optimizer object in place.

The new class (classes.py) aggregates gradients before Keras' own code updates the variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from grace_tf.aggregation.aggregator import Aggregator
from grace_tf.keras.classes import Wrapped, attach, detach, is_bare
from grace_tf.keras.optimizers import bases, innermost, is_horovods, parts
from grace_tf.line.settings import settings
from grace_tf.transports.world.current_workers import refuse_parameter_servers


def wrap(
    optimizer: Any,
    compressor: Any = "qsgd",
    *,
    memory: Any = "auto",
    granularity: str = "auto",
    exchange: str = "auto",
    hierarchical: bool | str = False,
    min_elements: int = 1024,
    exclude: str | Sequence[str] = (),
    bucket_bytes: int | None = None,
    seed: int = 0,
    check_every: int = 100,
    average_logs: bool = True,
    **hyperparameters: Any,
) -> Any:
    """Makes the gradients of a Keras optimizer travel compressed; returns the same object.

        model.compile(optimizer=grace_tf.wrap(keras.optimizers.Adam(1e-3), "qsgd"), ...)

    Slots, learning rate, schedules and callables stay; `unwrap` undoes it.  After both `fit` traces
    the model's step anew; a step of your own stays as it was traced.

    Args:
      optimizer: any Keras 3 or Keras 2 (new or legacy) optimizer, built or not; in a
        LossScaleOptimizer or a MultiOptimizer the inner optimizers are wrapped.
      compressor: an instance, a name with `hyperparameters`, a spec such as "topk:ratio=0.01", a
        schedule of these (`grace_tf.schedules`), which follows the optimizer's iterations, or a
        mapping from patterns (`re.fullmatch` on a variable's path) to any, the first counts.
      memory: "auto" (as the paper), an instance, a spec, or specs in turn: "residual@0;none@9".
      granularity: "auto" and "variable" compress per variable; "model" all gradients as one vector.
      exchange: "auto", or the way of payloads where possible: "gather", "two_hop" or "sum".
      hierarchical: True adds up gradients inside each host ("bf16": as bfloat16), compresses sums.
      min_elements, exclude: smaller variables, and those of these patterns, travel dense.
      bucket_bytes: bytes of gradients that travel together; None: a quarter of all payloads, but at
        least 512 KiB, and at most 25 MiB of gradients.  Changes results only with two hops.
      seed: of all random draws, 0 … 2^32 − 1; the same on every worker.  Optimizers of one program
        draw the same noise for the same seed: give each its own where it must be independent.
      check_every: workers compare weights after 1, 2, 4, 8 … steps, then every so many; 0: never.
      average_logs: whether `fit` averages metrics and BatchNorm's statistics over plain processes.

    Raises ValueError or TypeError for what is unknown, out of range, wrapped or cannot be served.
    """
    keywords = dict(memory=memory, granularity=granularity, exchange=exchange, seed=seed)
    keywords.update(min_elements=min_elements, exclude=exclude, bucket_bytes=bucket_bytes)
    keywords.update(hierarchical=hierarchical, check_every=check_every, average_logs=average_logs)
    wanted = settings(compressor, **keywords, **hyperparameters)
    refuse_parameter_servers(tf.distribute.get_strategy())
    attach(_plain(optimizer), wanted)
    return optimizer


def _plain(optimizer: Any) -> Any:
    """The optimizer to wrap.  Raises ValueError where it, or one in or around it, reduces."""
    inner = _optimizer(optimizer)
    for each in (optimizer, inner, *parts(inner)):
        if isinstance(each, Wrapped) and not is_bare(each):
            raise ValueError(
                f"This {type(each).__name__} is wrapped already; grace_tf.unwrap() it first."
            )
        if is_horovods(each):
            raise ValueError(
                f"This {type(each).__name__} is of hvd.DistributedOptimizer, which reduces "
                "gradients itself: give grace_tf.wrap() the optimizer that it was made of."
            )
    return inner


def unwrap(optimizer: Any) -> Any:
    """Undoes `wrap`: restores the optimizer's class and deletes its compression state.

    Args:
      optimizer: what `wrap` returned; of a LossScaleOptimizer the inner one is unwrapped.
    Returns: the same object.
    Raises: ValueError for an optimizer that is not wrapped, TypeError for anything else.
    """
    detach(_wrapped(optimizer))
    return optimizer


def aggregator_of(optimizer: Any) -> Aggregator:
    """The aggregator of a wrapped optimizer: its state, and `bytes_per_step`.

    Args:
      optimizer: what `wrap` returned.
    Returns: the `grace_tf.Aggregator` that aggregates its gradients.
    Raises: ValueError for an optimizer that is not wrapped, and for a MultiOptimizer, whose inner
      optimizers have one each; TypeError for what is no optimizer.
    """
    wrapped = _wrapped(optimizer)
    wrapped._settings()  # refuses a bare one
    if wrapped._grace is None:
        names = ", ".join(type(part).__name__ for part in parts(wrapped)) or "none yet"
        where = "optimizers" if hasattr(wrapped, "optimizers") else "optimizer_specs"
        raise ValueError(
            f"This {type(wrapped).__name__} deals variables out to other optimizers ({names}), "
            f"each with an aggregator of its own: ask for theirs, which are in its {where}."
        )
    return wrapped._grace


def _wrapped(optimizer: Any) -> Any:
    inner = _optimizer(optimizer)
    if not isinstance(inner, Wrapped):
        raise ValueError(f"This {type(inner).__name__} is not wrapped.")
    return inner


def _optimizer(given: Any) -> Any:
    optimizer = innermost(given)
    if not isinstance(optimizer, bases()):
        raise TypeError(f"wrap() takes a Keras optimizer, not {optimizer!r}.")
    return optimizer
