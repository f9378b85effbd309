"""How the program of one worker may differ from the others', from the start on."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

import grace_tf
from grace_tf.keras.flavours import flavour_of

RATE, METHOD = 0.01, "topk:ratio=0.1"


@dataclasses.dataclass(frozen=True)
class How:
    """The kind of fault of this worker's program, "" for none, and its seed.

    `hierarchical`: that all workers of a host share memory.
    """

    kind: str
    seed: int
    hierarchical: bool = False


def begin(how: How) -> None:
    """Sets what counts for all layers."""
    if how.kind == "dtype policy":
        policy = ("mixed_bfloat16", "mixed_float16")[how.seed % 2]
        keras.mixed_precision.set_global_policy(policy)


def layers(how: How, outputs: int) -> list[Any]:
    """The layers of the network."""
    activation = "relu" if how.kind == "activation" else "tanh"
    regulariser = keras.regularizers.L2(0.1) if how.kind == "regulariser" else None
    width = 24 if how.kind == "width" else 16
    if how.hierarchical:
        width = 1 << 16  # a sum takes seven turns through the memory
    hidden = keras.layers.Dense(width, activation=activation, kernel_regularizer=regulariser)
    more = [keras.layers.Dense(width)] if how.kind == "layer" else []
    return [hidden, *more, keras.layers.Dense(outputs)]


def compile_model(model: keras.Model, how: How) -> None:
    model.compile(
        _optimizer(how),
        "mae" if how.kind == "loss" else "mse",
        steps_per_execution=2 if how.kind == "steps per execution" else 1,
    )


def _optimizer(how: How) -> Any:
    rate = 10 * RATE if how.kind == "learning rate" else RATE
    beta = 0.8 if how.kind == "setting of the optimizer" else 0.9
    if how.kind == "optimizer":  # one alone: under a strategy each makes variables
        plain = keras.optimizers.SGD(rate)
    else:
        plain = keras.optimizers.Adam(rate, beta_1=beta)
    if how.kind == "no wrap":
        return plain
    method = ("qsgd", "topk:ratio=0.2", "fp16")[how.seed % 3] if how.kind == "method" else METHOD
    seed = 1 if how.kind == "seed of the method" else 0
    given = dict(min_elements=1, seed=seed, hierarchical=how.hierarchical)
    wrapped = grace_tf.wrap(plain, method, **given)
    if how.kind == "loss scale":
        scaled = keras.optimizers if flavour_of(wrapped).is_3 else keras.mixed_precision
        return scaled.LossScaleOptimizer(wrapped)
    return wrapped


def compile_again(model: keras.Model, how: How) -> None:
    """A second `compile` on one worker alone, with a new optimizer or with the same."""
    same = how.kind == "recompiled, same optimizer"
    with model.distribute_strategy.scope():
        model.compile(model.optimizer if same else _optimizer(how), "mse")


def callbacks(kind: str) -> list[Any]:
    """The callbacks that every worker gives to `fit`; they decide by validation metrics."""
    made = keras.callbacks
    if kind == "EarlyStopping":
        return [made.EarlyStopping("val_loss", patience=0)]
    if kind == "EarlyStopping, best weights":
        return [made.EarlyStopping("val_loss", patience=0, restore_best_weights=True)]
    if kind == "ReduceLROnPlateau":
        return [made.ReduceLROnPlateau("val_loss", patience=1)]
    return []
