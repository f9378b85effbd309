"""A method of your own: 8 bits an element, scaled by the largest one.

python -m grace_tf check examples/write_a_compressor.py:MaxScale
"""

import tensorflow as tf

import grace_tf
from grace_tf import ops


@grace_tf.register("maxscale", family="quantisation", paper="-")
class MaxScale(grace_tf.Compressor):
    """Sends round(s · x / c) as integers: C(x) = c·round(s·x/c)/s with c = max|x|, s = levels.

    Wire: codes int32[8·⌈n/32⌉], eight bits an element, and scale float32[1]: n + 4 bytes.
    Paper: none; a textbook quantiser.
    Differs: none.
    """

    levels: int = 127

    nonexpansive = (
        True  # so that the residual, grace_tf's default memory for such methods, may be used
    )
    homogeneous = True

    def wire(self, spec):
        words = ops.packed_words(spec.shape.num_elements(), 8)
        return {"codes": tf.TensorSpec([words], tf.int32), "scale": tf.TensorSpec([1], tf.float32)}

    def compress(self, x, ctx):
        x = tf.reshape(x, [-1])
        scale = ops.block_scales(x, ctx.elements, "max")
        return {"codes": ops.quantize(x, scale, self.levels, 8, ctx.elements, None), "scale": scale}

    def decompress(self, payload, ctx):
        n = ctx.elements
        x = ops.dequantize(payload["codes"], payload["scale"], n, self.levels, 8, n)
        return tf.reshape(x, ctx.spec.shape)


def main():
    print(grace_tf.testing.check_compressor("maxscale"))
    workers = grace_tf.testing.Workers(2, "maxscale")
    means = workers([[tf.constant([1.0, -2.0, 3.0])], [tf.constant([3.0, 2.0, 1.0])]])
    print("The mean that worker 0 gets:", means[0][0].numpy())


if __name__ == "__main__":
    main()
