"""Aggregators and their state, for tests of what happens to it."""

import numpy as np
import tensorflow as tf

import grace_tf

TOPK = "topk:ratio=0.2"


def named(*names, shape=(10,)):
    return {name: tf.Variable(tf.zeros(shape), name=name) for name in names}


def gradients(variables, seed=0):
    """The same for a variable of the same name, in whatever order they come."""
    return [
        tf.constant(np.random.default_rng([seed, ord(v.name[0])]).normal(size=v.shape), tf.float32)
        for v in variables
    ]


def aggregator(compressor=TOPK, **keywords):
    return grace_tf.Aggregator(compressor, min_elements=1, **keywords)


def stepped(aggregate, variables, steps=2, seed=0):
    for step in range(steps):
        out = aggregate(gradients(variables, seed + step), variables)
    return {v.name: total.numpy() for v, total in zip(variables, out)}


def residual(aggregate, name):
    return aggregate.state.arrays()[f"{name}/memory/residual"][0]
