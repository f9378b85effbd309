"""Conditions on which many variables or tensors depend.

TensorFlow turns a condition in a graph into a switch for every tensor that goes into it, so one on
the state of a thousand variables is thousands of nodes, which the first step pays for several times
over.  Here a condition stays one node where that can be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.python.ops import control_flow_util

_SPLIT = "_lower_using_switch_merge"  # TensorFlow's mark of a condition to be taken apart


def cond(predicate: tf.Tensor, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """`tf.cond`; in a graph it stays one node where this process has only one device.

    With several devices the branches may use more than one, which a single node cannot.
    """
    results = tf.cond(predicate, yes, no)
    if not tf.executing_eagerly() and _one_device():
        output = tf.nest.flatten(results)[0].op
        node = output.inputs[0].op if output.type == "Identity" else output
        compiled = control_flow_util.GraphOrParentsInXlaContext(node.graph)
        if node.type in ("If", "StatelessIf") and not compiled:
            node._set_attr(_SPLIT, AttrValue(b=False))
    return results


def _one_device() -> bool:
    # Between processes TensorFlow may list the other workers' devices too, under the same names.
    devices = tf.config.list_logical_devices()
    return len({(each.device_type, each.name.rsplit(":")[-1]) for each in devices}) == 1
