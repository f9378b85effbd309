"""The step of a Keras model without any exchange, timed in parts.

A compiled model and a batch come in; a `Compute` goes out.  The parts are the forward pass, the
backward pass up to each variable's gradient, and the update, which is the rest of the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from grace_tf.advice.timeline import Compute
from grace_tf.aggregation.already_aggregated import mark
from grace_tf.aggregation.measure.link import Agree, duration
from grace_tf.aggregation.measure.moments import now
from grace_tf.line.inputs import plain
from grace_tf.transports.world.current_workers import several

_IN_A_ROW = 0.1  # seconds; short runs are timed together until they take as long
_MOST_IN_A_ROW = 8  # runs that are timed together at most


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

    def train() -> tf.Tensor:
        return tf.constant(model.train_on_batch(x, y))

    moments = moments_of(model, x, y, variables)
    weights = model.get_weights()
    taken: list[list[float]] = []  # by repeat
    count = 1
    for repeat in range(-2, repeats):  # the first two trace and warm up
        meet()
        step = _each(train, count)
        meet()
        found = [step, *np.mean([moments()[0].numpy() for _ in range(count)], 0)]
        if repeat >= 0:
            taken.append(found)
        elif repeat == -1:
            (slowest,) = agree([step])
            count = max(1, min(_MOST_IN_A_ROW, math.ceil(_IN_A_ROW / slowest)))
    model.set_weights(weights)
    slowest = np.reshape(agree(np.ravel(taken).tolist()), np.shape(taken))
    step, output, *ready = np.median(slowest, 0).tolist()
    ahead = min(output, step)
    back = min(max([ahead, *ready]), step) - ahead
    shares = shares_of([seconds - ahead for seconds in ready])
    return Compute(ahead, back, step - ahead - back, shares=shares)


def gradients(model: Any, x: Any, y: Any, variables: Sequence[Any]) -> list[Any]:
    """The gradients of the model's own loss on a batch.

    The gradient is None where the loss does not depend on the variable.  For a table of embeddings
    it has only the rows that the batch uses.
    """
    return _output_and_gradients(model, x, y, variables)[1]


def _output_and_gradients(
    model: Any, x: Any, y: Any, variables: Sequence[Any]
) -> tuple[Any, list[Any]]:
    with tf.GradientTape() as tape:
        output = model(x, training=True)
        loss = model.compute_loss(x=x, y=y, y_pred=output)
    return output, tape.gradient(loss, [plain(variable) for variable in variables])


def moments_of(
    model: Any, x: Any, y: Any, variables: Sequence[Any]
) -> Callable[[], tuple[tf.Tensor, tf.Tensor]]:
    """Returns a traced function that runs forward and backward, and reads a clock in between.

    The whole graph runs, as in a step.  TensorFlow starts an operation when its inputs are ready
    and a thread is free.  So a gradient is often ready later than in a graph that computes only
    this gradient.

    The function returns the seconds from the beginning until the model's output is computed, and
    until the gradient of each variable is computed; 0 for a variable without gradient.  It also
    returns one element of each of them.
    """

    @tf.function(autograph=False)
    def moments() -> tuple[tf.Tensor, tf.Tensor]:
        begin = now([])
        with tf.control_dependencies([begin]):
            mine_x, mine_y = tf.nest.map_structure(tf.identity, (x, y))
        output, found = _output_and_gradients(model, mine_x, mine_y, variables)
        last = tf.nest.flatten(output)[-1]
        ones = [None if each is None else _one_element(each) for each in (last, *found)]
        ends = [begin if each is None else now([each]) for each in ones]
        # TensorFlow removes an operation from a graph if no output of the graph needs its result,
        # even if the clock waits for the operation.  So an element of each gradient is an output.
        return tf.stack(ends) - begin, tf.concat([each for each in ones if each is not None], 0)

    return moments


def _one_element(value: Any) -> tf.Tensor:
    """The first element of a tensor, or of the rows of a table, copied to the CPU.

    On a GPU the copy waits until the tensor is computed.
    """
    one = tf.reshape(getattr(value, "values", value), [-1])[:1]
    with tf.device("CPU:0"):
        return tf.identity(tf.cast(one, tf.float32))


def _each(run: Callable[[], Any], count: int) -> float:
    """Runs the function `count` times in a row.  Returns the mean seconds of one run.

    The first run after a wait for the other workers is slower than a run in a training.
    """

    def runs() -> Any:
        for _ in range(count):
            last = run()
        return last

    return duration(runs) / count


def shares_of(seconds: Sequence[float]) -> tuple[float, ...]:
    """Each variable's share of the time of the backward pass.

    `seconds[i]` is the time until the gradient of variable i is ready.  A gradient that is ready
    before that of a later variable waits for it: buckets are sent in backward order.
    """
    whole = max([*seconds, 1e-9])
    reached = np.maximum.accumulate([0.0, *(seconds[::-1])])
    return tuple(np.diff(reached)[::-1] / whole)
