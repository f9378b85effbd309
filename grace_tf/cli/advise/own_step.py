"""The step of a Keras model without any exchange, timed in parts.

A compiled model and a batch come in; a `Compute` goes out.  The parts are the forward pass, the
backward pass up to certain variables, which says when their gradients are there, and the update,
which is the rest of the step.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from grace_tf.advice.timeline import Compute, shares_by_size
from grace_tf.aggregation.already_aggregated import mark
from grace_tf.aggregation.measure.link import Agree, duration
from grace_tf.line.inputs import plain
from grace_tf.transports.world.current_workers import several

_IN_A_ROW = 0.1  # seconds; short runs are timed together until they take as long
_MOST_IN_A_ROW = 8  # runs that are timed together at most
_PARTS = 6  # of backward at most; each is traced, which takes seconds for a large model


def compute(
    model: Any, x: Any, y: Any, repeats: int, meet: Callable[[], None], agree: Agree
) -> Compute:
    """Times the parts of a step.

    The times are medians over the repeats; in each repeat the time of the slowest worker counts.
    Timing runs real training steps, which change the weights.  At the end the weights are set back
    to their first values.

    Args:
      model, x, y: compiled and built; a batch of one worker, as tensors.
      meet: all workers wait for each other in it, so that those which share a processor compute at
        the same time, as in a training.
      agree: returns the times of the slowest worker.
    """
    variables = list(model.trainable_variables)
    if several():
        # Between workers a plain optimizer is refused unless its gradients are reduced elsewhere.
        # Here they are not, since a step without any exchange is what is timed.
        mark(variables, compute)
    sizes = [math.prod(variable.shape) for variable in variables]
    cuts = cuts_of(sizes)

    def train() -> tf.Tensor:
        return tf.constant(model.train_on_batch(x, y))

    @tf.function(autograph=False)
    def forward() -> tf.Tensor:
        return model(x, training=True)

    weights = model.get_weights()
    runs = [train, forward, *(backward_to(model, x, y, variables[cut:]) for cut in cuts)]
    taken: list[list[float]] = []  # by repeat
    count = 1
    for repeat in range(-2, repeats):  # the first two trace and warm up
        found = []
        for run in runs:
            meet()
            found.append(_each(run, count))
        if repeat >= 0:
            taken.append(found)
        elif repeat == -1:
            (slowest,) = agree(found[:1])
            count = max(1, min(_MOST_IN_A_ROW, math.ceil(_IN_A_ROW / slowest)))
    model.set_weights(weights)
    step, only, *upto = (statistics.median(agree(each)) for each in zip(*taken))
    ahead = min(only, step)
    back = min(max(upto[0], ahead), step) - ahead
    shares = shares_of(sizes, cuts, [seconds - ahead for seconds in upto])
    return Compute(ahead, back, step - ahead - back, shares=shares)


def gradients(model: Any, x: Any, y: Any, variables: Sequence[Any]) -> list[Any]:
    """The gradients of the model's own loss on a batch.

    The gradient is None where the loss does not depend on the variable.  For a table of embeddings
    it has only the rows that the batch uses.
    """
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
    return tape.gradient(loss, [plain(variable) for variable in variables])


def cuts_of(sizes: Sequence[int]) -> list[int]:
    """The positions of the largest variables, in the model's order, and always position 0."""
    largest = sorted(range(len(sizes)), key=lambda place: -sizes[place])
    return sorted({0, *largest[: _PARTS - 1]})


def backward_to(model: Any, x: Any, y: Any, variables: Sequence[Any]) -> Callable[[], Any]:
    """Returns a traced function that computes the gradients of these variables, and nothing else.

    TensorFlow removes the parts of the backward pass that these gradients do not need.
    """

    @tf.function(autograph=False)
    def tensors() -> list[tf.Tensor]:
        found = [each for each in gradients(model, x, y, variables) if each is not None]
        return tf.nest.flatten(found, expand_composites=True)

    return tensors


def _each(run: Callable[[], Any], count: int) -> float:
    """Runs the function `count` times in a row.  Returns the mean seconds of one run.

    The first run after a wait for the other workers is slower than a run in a training.
    """

    def runs() -> Any:
        for _ in range(count):
            last = run()
        return last

    return duration(runs) / count


def shares_of(sizes: Sequence[int], cuts: Sequence[int], seconds: Sequence[float]) -> tuple:
    """Each variable's share of the time of the backward pass.

    `seconds[i]` is the time until the gradient of variable `cuts[i]` is ready.  `cuts[0]` is 0, so
    `seconds[0]` is the time of the whole backward pass.  The large variables between two cuts get
    equal shares.
    """
    whole = max(seconds[0], 1e-9)
    reached = [min(max(each / whole, 0.0), 1.0) for each in seconds] + [0.0]
    for place in reversed(range(len(cuts))):  # noise may reverse the order of two times
        reached[place] = max(reached[place], reached[place + 1])
    found: list[float] = []
    for begin, end, now, after in zip(cuts, [*cuts[1:], len(sizes)], reached, reached[1:]):
        found += [(now - after) * each for each in shares_by_size(sizes[begin:end])]
    return tuple(found)
