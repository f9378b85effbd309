"""Small leaves of the state share a variable, so that a step reads and assigns them by few nodes.

In the first step TensorFlow creates each variable of the state, passes it into the graph, and
optimises a node that assigns it.  A model of a thousand variables has one or two leaves for each of
them, so this takes seconds.  In later steps copying a small leaf takes less time than a node that
assigns it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from grace_tf.aggregation.state import variable_nodes
from grace_tf.ops import joining

MOST = 4096  # elements of a leaf; for a larger one copying takes longer than a node of its own


def fits(value: np.ndarray) -> bool:
    """Whether a leaf of this value may lie in a JoinedVariable."""
    return value.dtype == np.float32 and 0 < value.size <= MOST


class JoinedVariable:
    """One float32 variable with several values end to end, its parts.

    Args:
      values: the first values of the parts.
      name: the name of the variable.
    """

    def __init__(self, values: Sequence[np.ndarray], name: str) -> None:
        self.variable = variable_nodes.made(np.concatenate([v.ravel() for v in values]), name)
        self.shapes = [value.shape for value in values]
        begins = np.cumsum([0, *(value.size for value in values)])
        self.parts = [Part(self, i, int(begin)) for i, begin in enumerate(begins[:-1])]

    def split(self, whole: tf.Tensor) -> list[tf.Tensor]:
        """The values of the parts in a value of the variable."""
        return joining.split(whole, self.shapes)[0]

    def join(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
        """The value of the variable in which the parts have these values."""
        return joining.join(values)[0]


class Part:
    """The place of one leaf in a JoinedVariable; it is used as a variable of that shape."""

    dtype = tf.float32

    def __init__(self, joined: JoinedVariable, number: int, begin: int) -> None:
        self.joined, self.number, self._begin = joined, number, begin
        self.shape = tf.TensorShape(joined.shapes[number])
        self._end = begin + math.prod(joined.shapes[number])

    @property
    def device(self) -> str:
        return self.joined.variable.device

    def read_value(self) -> tf.Tensor:
        """The value of this part alone."""
        whole = self.joined.variable.read_value()
        return tf.reshape(whole[self._begin : self._end], self.shape)

    def sparse_read(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Rows of the value, which `tf.gather` asks of a variable."""
        return tf.gather(self.read_value(), indices, name=name)

    def numpy(self) -> np.ndarray:
        return self.read_value().numpy()

    def assign(self, value: Any) -> None:
        """Gives this part a value of its shape, and leaves the others."""
        value = tf.convert_to_tensor(value, self.dtype)
        value.shape.assert_is_compatible_with(self.shape)
        tf.raw_ops.ResourceStridedSliceAssign(
            ref=self.joined.variable.handle,
            begin=[self._begin],
            end=[self._end],
            strides=[1],
            value=tf.reshape(value, [-1]),
        )


def read(variables: Sequence[Any]) -> list[tf.Tensor]:
    """The values of `tf.Variable`s and Parts; the parts of a variable are read together."""
    joined = _joined(variables)
    alone = [variable for variable in variables if not isinstance(variable, Part)]
    values = variable_nodes.read([*alone, *(each.variable for each in joined)])
    wholes = values[len(alone) :]
    pieces = {id(each): each.split(whole) for each, whole in zip(joined, wholes)}
    own = iter(values)
    return [pieces[id(v.joined)][v.number] if isinstance(v, Part) else next(own) for v in variables]


def whole_changes(
    changes: Sequence[tuple[Any, Any, Any]],
) -> list[tuple[tf.Variable, Any, Any]]:
    """The (variable, value read, next value) of variables and Parts as those of variables alone.

    Parts that do not change keep their value.  Next values of a Part may be IndexedSlices.
    """
    nexts: dict[int, dict[int, Any]] = {}
    for variable, _, value in changes:
        if isinstance(variable, Part):
            nexts.setdefault(id(variable.joined), {})[variable.number] = value
    whole = [each for each in changes if not isinstance(each[0], Part)]
    joined = _joined([variable for variable, _, _ in changes])
    lasts = variable_nodes.read([each.variable for each in joined])
    for each, last in zip(joined, lasts):
        whole.append((each.variable, last, each.join(_values(each, last, nexts[id(each)]))))
    return whole


def whole_variables(variables: Iterable[tf.Variable | Part]) -> list[tf.Variable]:
    """The `tf.Variable`s that hold these variables and Parts, each once."""
    whole = (v.joined.variable if isinstance(v, Part) else v for v in variables)
    return list({id(variable): variable for variable in whole}.values())


def _joined(variables: Sequence[Any]) -> list[JoinedVariable]:
    """The variables of the Parts among these, each once."""
    return list({id(v.joined): v.joined for v in variables if isinstance(v, Part)}.values())


def _values(joined: JoinedVariable, last: tf.Tensor, nexts: Mapping[int, Any]) -> list[tf.Tensor]:
    values = [nexts.get(i) for i in range(len(joined.parts))]
    if any(value is None or isinstance(value, tf.IndexedSlices) for value in values):
        for i, (value, old) in enumerate(zip(values, joined.split(last))):
            if value is None:
                values[i] = old
            elif isinstance(value, tf.IndexedSlices):
                places = value.indices[:, tf.newaxis]
                values[i] = tf.tensor_scatter_nd_update(old, places, value.values)
    return values
