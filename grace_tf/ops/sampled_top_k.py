"""Selection by a sampled threshold, with momentum correction, on whole lists of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from grace_tf.ops import dispatch
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.arguments import ListKey
from grace_tf.ops.backend.outputs import ResidualsOut, Tensors, encoded, residuals_like
from grace_tf.ops.reference import sampled_top_k as reference


class Sampling(NamedTuple):
    """How the threshold of one tensor is found."""

    k: int
    """The most elements that are sent."""
    stride: int
    """One of this many elements is in the sample; 1 for no sample."""
    size: int
    """How many elements are looked at."""
    rank: int
    """Which of them, the largest first, gives the threshold."""


class Momentum(NamedTuple):
    """What turns gradients g into what is selected from, with the next u and v.

    g is first multiplied by `clip_factor(g, limit)`. Then u' = factor * u + g and v' = v + u', or
    with nesterov v' = (v + g) + factor * u'. If masked, u' is 0 at what is sent.
    """

    states: Sequence[tf.Tensor]
    """u, of each tensor's shape."""
    factor: float
    nesterov: bool
    masked: bool
    limit: float | None


class Selected(NamedTuple):
    """What `sampled_k_list` gives."""

    values: tf.Tensor
    """float32 [sum of the k]: a tensor's values; zeros follow after as many as its count."""
    indices: tf.Tensor
    """int32, likewise; they ascend within each tensor."""
    counts: tf.Tensor
    """int32 [N]."""
    states: ResidualsOut
    """The next u; None without momentum."""
    residuals_out: ResidualsOut
    """What was selected from minus what is sent; None without residuals."""
    finite: tf.Tensor
    """A bool scalar: whether all that was selected from is finite."""


def sampling_of(n: int, k: int, sample: float) -> Sampling:
    """The sampling of a tensor of n elements, from which about k are sent.

    At least the fraction `sample` is looked at, and so many that two of them are among the k
    largest on average; all where that is more than a third, or where k is more than a half. The
    stride is odd, so that it meets all columns of a matrix with an even number of them.
    """
    needed = max(int(np.ceil(sample * n)), -(-2 * n // k))
    stride = 1 if 2 * k > n else max(1, n // needed)
    stride -= stride % 2 == 0
    size = n // stride
    return Sampling(k, stride, size, -(-size * k // n))


def clip_factor(x: tf.Tensor, limit: float) -> tf.Tensor:
    """A float32 scalar: limit / ‖x‖ where the norm of a vector exceeds the limit, else 1."""
    return reference.clip_factor(x, limit)


def sampled_k_list(
    xs: Tensors,
    residuals: Tensors | None,
    multiplier: float,
    samplings: Sequence[Sampling],
    key: ListKey,
    momentum: Momentum | None = None,
) -> Selected:
    """Of the k largest elements of each acc, k being its sampling's, those above a threshold.

    acc_i = xs_i * multiplier + residuals_i, as in `selection`, or the v' of `momentum`, v being
    the residuals. The threshold is the rank-th largest magnitude of the sample acc[start],
    acc[start + stride], …; the start is drawn from the tensor's stream. While the threshold leaves
    less than 4/5 of k, it is multiplied by 0.8, at most ten times. A stride of 1 needs none. Zeros,
    denormals and NaN are not sent, but NaN may be among the k.
    """
    xs, residuals = arguments.encoder_lists(xs, residuals)
    arguments.residual_list(momentum and momentum.states, xs)
    arguments.check_counts([s.k for s in samplings], [x.shape for x in xs])
    arguments.check_list_key(key, len(xs))
    if momentum and not residuals:
        raise ValueError("Momentum accumulates in residuals; there are none.")
    if not residuals and multiplier != 1.0:
        raise ValueError("A multiplier comes with residuals; there are none.")
    if dispatch.runs_here(xs):
        return _native(xs, residuals, multiplier, samplings, key, momentum)
    return Selected(*reference.sampled_k_list(xs, residuals, multiplier, samplings, key, momentum))


def _native(xs, residuals, multiplier, samplings, key, momentum) -> Selected:
    ks, strides, sizes, ranks = (list(column) for column in zip(*samplings))
    states, factor, nesterov, masked, limit = momentum or ([], 0.0, False, False, None)
    values, indices, counts, residuals_out, next_states, finite = (
        native._ops().grace_sampled_k_list(
            xs=xs,
            residuals=residuals,
            states=list(states),
            multiplier=multiplier,
            ks=ks,
            strides=strides,
            sizes=sizes,
            ranks=ranks,
            momentum=factor,
            nesterov=nesterov,
            masked=masked,
            limit=-1.0 if limit is None else limit,
            **native.streams(key),
        )
    )
    outputs, lengths = [values, indices, counts, residuals_out, finite], [sum(ks)] * 2 + [len(xs)]
    *parts, residuals_out, finite = encoded(outputs, lengths, residuals)
    next_states = residuals_like(next_states, residuals) if momentum else None
    return Selected(*parts, next_states, residuals_out, finite)
