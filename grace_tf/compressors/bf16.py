"""`bf16`: gradients cast to bfloat16."""

import tensorflow as tf

from grace_tf.core.cast import Cast
from grace_tf.core.registry import register


@register("bf16", family="cast", paper="arXiv:1905.12322", memory="none")
class BF16(Cast):
    """Sends each element rounded to bfloat16: C(x) = bfloat16(x), to nearest, ties to even.

    Shapes: any float32 tensor.  Decodes to float32; the sum over workers is taken in bfloat16 (8
    bits of significand), in the order of the collective.
    Wire: values bfloat16[n], all-reduced: 2n bytes.
    Range: that of float32.
    Paper: Kalamkar et al. 2019, A Study of BFLOAT16 for Deep Learning Training.
    Differs: none.
    """

    dtype = tf.bfloat16
