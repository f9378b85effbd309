"""`fp16`: gradients cast to float16."""

import tensorflow as tf

from grace_tf.core.cast import Cast
from grace_tf.core.registry import register


@register("fp16", family="cast", paper="arXiv:1710.03740", memory="none")
class FP16(Cast):
    """Sends each element rounded to float16: C(x) = float16(x), to nearest, ties to even.

    Shapes: any float32 tensor.  Decodes to float32; the sum over workers is taken in float16 (11
    bits of significand), in the order of the collective.
    Wire: values float16[n], all-reduced: 2n bytes.
    Range: a value or a sum beyond 65504 becomes infinite; the line then makes the whole aggregate
    non-finite on every worker and keeps all state.  A LossScaleOptimizer of Keras skips such a step
    on every worker and halves its scale.
    Paper: Micikevicius et al. 2018, Mixed Precision Training, section 3.
    Differs: none.
    """

    dtype = tf.float16
