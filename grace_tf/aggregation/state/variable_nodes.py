"""Makes, reads and assigns many variables with few nodes and little Python.

The first step of a model with a thousand variables traces, optimises and runs nodes for each leaf
of the state.  `ResourceVariable`'s own methods spend most of that time on tapes, caching devices
and checks of shapes, which the state does not need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from grace_tf.ops.backend.outputs import tell_shapes

# TensorFlow has a kernel for each name of a handle, and making one takes most of the time that a
# variable takes.  So all handles share this name; the variables have names of their own.
_HANDLE = "grace/state"


def made(value: np.ndarray, name: str) -> ResourceVariable:
    """A variable that is not trained, made here and now or in a graph of TensorFlow 1."""
    if not tf.executing_eagerly():
        return ResourceVariable(value, trainable=False, name=name)
    variable = ResourceVariable(tf.constant(value), trainable=False, name=_HANDLE)
    variable._handle_name = f"{name}:0"
    return variable


def read(variables: Sequence[Any]) -> list[tf.Tensor]:
    """The values of `tf.Variable`s, whose handles must be resources; no tape records it.

    In a graph one node reads all variables of a device, except where XLA compiles.
    """
    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly() or control_flow_util.GraphOrParentsInXlaContext(graph):
        return [_read(variable) for variable in variables]
    by_device: dict[str | None, list[int]] = {}
    for i, variable in enumerate(variables):
        by_device.setdefault(variable.device, []).append(i)
    values: dict[int, tf.Tensor] = {}
    for places in by_device.values():
        given = [variables[i] for i in places]
        values.update(zip(places, _read_by_one_node(graph, given)))
    return [values[i] for i in range(len(variables))]


def _read(variable: Any) -> tf.Tensor:
    value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
    value.set_shape(variable.shape)
    return value


def _read_by_one_node(graph: tf.Graph, variables: Sequence[Any]) -> list[tf.Tensor]:
    types = [variable.dtype for variable in variables]
    listed = AttrValue.ListValue(type=[each.as_datatype_enum for each in types])
    # TensorFlow gives this operation no function in Python.
    node = graph._create_op_internal(
        "_ReadVariablesOp",
        [variable.handle for variable in variables],
        types,
        name="read_state",
        attrs={"N": AttrValue(i=len(types)), "dtypes": AttrValue(list=listed)},
    )
    values = list(node.outputs)
    for value, variable in zip(values, variables):
        value.set_shape(variable.shape)
    tell_shapes(values[0])
    return values


def assign(variable: ResourceVariable, value: tf.Tensor) -> tf.Operation:
    """The node of a graph that assigns a value of the variable's dtype and shape."""
    return tf.compat.v1.get_default_graph()._create_op_internal(
        "AssignVariableOp",
        [variable.handle, value],
        [],
        attrs={
            "dtype": AttrValue(type=variable.dtype.as_datatype_enum),
            "validate_shape": AttrValue(b=False),
        },
    )
