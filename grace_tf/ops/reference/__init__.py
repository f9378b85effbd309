"""The meaning of every operation, in plain TensorFlow; the native library is tested against it.

Arguments arrive checked (see `grace_tf.ops`): vectors of static shape, Python integers for sizes.
Results do not depend on how a machine treats denormal numbers; `arithmetic` says how. Under XLA the
compiler may fuse a multiply and an add; everywhere else the results are bit-equal on every machine.
"""

from grace_tf.ops.reference.one_tensor import all_finite, block_scales, gather, quantize
from grace_tf.ops.reference.random import random_indices, random_normal, random_words, uniform
from grace_tf.ops.reference.signed_sums import signed_sums

__all__ = [
    "all_finite",
    "block_scales",
    "gather",
    "quantize",
    "random_indices",
    "random_normal",
    "random_words",
    "signed_sums",
    "uniform",
]
