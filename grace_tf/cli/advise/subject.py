"""What is trained: the shapes of its gradients, and if it can run its step and its own gradients.

The options --model and --shapes come in; a `Subject` goes out.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import pathlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from grace_tf.advice.timeline import Compute
from grace_tf.aggregation.measure.link import Agree
from grace_tf.cli.advise import own_step
from grace_tf.cli.advise.gradients import STATED, drawn
from grace_tf.cli.models import MODELS

_FORM = "3,3,3,64;64;64,10, a file with one shape on each line, or a JSON list of lists"

Shapes = list[tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model, or its shapes.

    Attributes:
      name: as text for a sentence.
      shapes: of its variables, in order.
      compute: measures its step without any exchange, given a number of repeats, a function in
        which all workers wait for each other, and one that tells the times of the slowest worker;
        None where it cannot run.
      gradients: worker w's own, of the variables at some positions.
      stated: what these gradients are, as text.
      own: whether they are the model's.
    """

    name: str
    shapes: Shapes
    gradients: Callable[[Sequence[int], int], list[tf.Tensor]]
    compute: Callable[[int, Callable[[], None], Agree], Compute] | None = None
    stated: str = STATED
    own: bool = False


def subject(model: str | None, shapes: str | None) -> Subject:
    """The subject of the command line.  Raises ValueError for what it cannot read or find."""
    if shapes is not None:
        return _of_shapes("these shapes", parse_shapes(shapes))
    if model in MODELS:
        return _of_shapes(model, MODELS[model]())
    place, _, name = model.partition(":")
    if not place.endswith(".py") or not name:
        raise ValueError(
            f"--model takes {', '.join(sorted(MODELS))} or file.py:function, not {model!r}."
        )
    return _of_keras(model, *_made(place, name))


def parse_shapes(text: str) -> Shapes:
    """The shapes that a text or the file of that name has.  Raises ValueError for another form."""
    file = pathlib.Path(text)
    named = len(text) < 4096 and file.is_file()
    content = file.read_text(encoding="utf-8") if named else text
    try:
        if content.lstrip().startswith("["):
            found = [tuple(int(size) for size in shape) for shape in json.loads(content)]
        else:
            lines = [line.strip() for line in content.replace(";", "\n").splitlines()]
            found = [tuple(int(size) for size in line.split(",")) for line in lines if line]
    except (ValueError, TypeError):
        found = []
    if not found or any(size < 1 for shape in found for size in shape):
        raise ValueError(f"--shapes takes {_FORM}, not {text!r}.")
    return found


def _of_shapes(name: str, shapes: Shapes) -> Subject:
    def gradients(positions: Sequence[int], worker: int) -> list[tf.Tensor]:
        return drawn([shapes[i] for i in positions], worker)

    return Subject(name, shapes, gradients)


def _made(place: str, name: str) -> tuple[Any, Any, Any]:
    """What the function of this name in the file at `place` returns."""
    if not pathlib.Path(place).is_file():
        raise ValueError(f"There is no file {place!r}.")
    spec = importlib.util.spec_from_file_location(pathlib.Path(place).stem, place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{place} has no function {name!r}.")
    made = function()
    if not isinstance(made, tuple) or len(made) != 3 or not hasattr(made[0], "train_on_batch"):
        raise ValueError(
            f"{place}:{name} must return a compiled Keras model and one batch of a worker, "
            "(model, x, y)."
        )
    return made


def _of_keras(name: str, model: Any, x: Any, y: Any) -> Subject:
    model(x, training=False)  # builds it
    variables = list(model.trainable_variables)
    x, y = tf.nest.map_structure(tf.convert_to_tensor, (x, y))
    rows = tf.nest.flatten(x)[0].shape[0]

    def gradients(positions: Sequence[int], worker: int) -> list[tf.Tensor]:
        # Each worker has other rows of the batch, drawn again and again.
        drawn_rows = tf.random.stateless_uniform([rows], [worker, 1], 0, rows, tf.int32)
        mine_x, mine_y = tf.nest.map_structure(lambda each: tf.gather(each, drawn_rows), (x, y))
        chosen = [variables[i] for i in positions]
        found = own_step.gradients(model, mine_x, mine_y, chosen)
        return [
            tf.zeros(v.shape) if grad is None else tf.convert_to_tensor(grad)
            for grad, v in zip(found, chosen)
        ]

    shapes = [tuple(variable.shape) for variable in variables]
    stated = "the model's own, at its weights as they are, each worker on other rows of the batch"
    step = partial(own_step.compute, model, x, y)
    return Subject(name, shapes, gradients, step, stated, own=True)
