"""A program of a user, which `make types` checks: public names have the types they promise."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

import grace_tf

group = grace_tf.init(timeout=60)
x, y = grace_tf.shard((tf.zeros([8, 4]), tf.zeros([8, 1])))
optimizer = grace_tf.wrap(keras.optimizers.SGD(0.1), "topk:ratio=0.01", exclude=("bias",), seed=3)
plain = grace_tf.unwrap(optimizer)
strategy = tf.distribute.MirroredStrategy(cross_device_ops=grace_tf.CompressedAllReduce("qsgd"))
compressor = grace_tf.get("qsgd", bits=4)
spec: str = str(compressor)
names: Sequence[str] = grace_tf.available()
aggregate = grace_tf.Aggregator(compressor, reduce="mean", min_elements=1)
variables = [tf.Variable(tf.zeros([3]))]
totals: list[Any] = aggregate([tf.ones([3])], variables)
totals = grace_tf.all_reduce([tf.ones([3])], variables, "none")
where: tuple[int, int, int] = (grace_tf.rank(), grace_tf.local_rank(), grace_tf.size())
grace_tf.barrier()
grace_tf.broadcast(variables, root=0)
of_grace = grace_tf.from_params({"compressor": "topk", "memory": "residual"})
report = grace_tf.testing.check_compressor("none", quick=True)
passed: bool = report.ok


@grace_tf.register("halves", family="cast", paper="-")
@dataclasses.dataclass(frozen=True)
class Halves(grace_tf.Compressor):
    """Sends halves."""
