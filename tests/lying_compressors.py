"""A compressor that claims the truth, and others that lie, each in one way.

`LIES` pairs every liar with the check of the suite that must catch it.
"""

import tensorflow as tf

import grace_tf


class Honest(grace_tf.Compressor):
    """Half of every element: a contraction that claims nothing else.

    Wire: values float32[n].
    Paper: none.
    Differs: none.
    """

    nonexpansive = True
    homogeneous = True
    commutes_with_sum = True
    factor = 0.5

    def wire(self, spec):
        return {"values": tf.TensorSpec([spec.shape.num_elements()], tf.float16)}

    def compress(self, x, ctx):
        return {"values": tf.cast(tf.reshape(self.factor * x, [-1]), tf.float16)}

    def decompress(self, payload, ctx):
        return tf.cast(tf.reshape(payload["values"], ctx.spec.shape), tf.float32)


class Biased(Honest):
    __doc__ = Honest.__doc__
    factor = 0.99
    unbiased = True


class Expansive(Honest):
    __doc__ = Honest.__doc__
    factor = -0.01


class Lossy(Honest):
    __doc__ = Honest.__doc__
    lossless = True


class Clips(Honest):
    """Not homogeneous, though it says so.

    Wire: values float16[n].
    Paper: none.
    Differs: none.
    """

    def compress(self, x, ctx):
        return super().compress(tf.clip_by_value(x, -1.0, 1.0), ctx)


class Gathers(Honest):
    """Sends the square: sums of payloads mean nothing.

    Wire: values float16[n].
    Paper: none.
    Differs: none.
    """

    homogeneous = False

    def compress(self, x, ctx):
        flat = tf.reshape(x, [-1])
        return {"values": tf.cast(tf.sign(flat) * tf.sqrt(tf.abs(flat)), tf.float16)}

    def decompress(self, payload, ctx):
        values = tf.cast(tf.reshape(payload["values"], ctx.spec.shape), tf.float32)
        return values * tf.abs(values)


class PrivateDecoder(Honest):
    __doc__ = Honest.__doc__

    def decompress(self, payload, ctx):
        noise = grace_tf.ops.uniform(ctx.elements, ctx.key())
        return super().decompress(payload, ctx) + tf.reshape(noise, ctx.spec.shape)


class GlobalRandomness(Honest):
    __doc__ = Honest.__doc__

    def compress(self, x, ctx):
        return super().compress(x * tf.random.uniform([]), ctx)


class SameDraws(Honest):
    __doc__ = Honest.__doc__

    def compress(self, x, ctx):
        ctx.key()  # opens the private stream and then draws from a fixed one
        noise = grace_tf.ops.uniform(ctx.elements, grace_tf.ops.Key(1, 2, 3, 4, 5))
        return super().compress(x * tf.reshape(noise, x.shape), ctx)


class WiderThanSaid(Honest):
    __doc__ = Honest.__doc__
    commutes_with_sum = False

    def compress(self, x, ctx):
        return {"values": 0.5 * tf.reshape(x, [-1])}


class HalfEmpty(Honest):
    """Sends what is positive, packed to the front.

    Wire: values float16[n].
    Paper: none.
    Differs: none.
    """

    commutes_with_sum = False
    homogeneous = False
    nonexpansive = False

    def compress(self, x, ctx):
        flat = tf.sort(tf.nn.relu(tf.reshape(x, [-1]) - 3.0), direction="DESCENDING")
        return {"values": tf.cast(flat, tf.float16)}


class WrongBlock(Honest):
    """Differences of neighbours, which no slice can undo.

    Wire: values float16[n].
    Paper: none.
    Differs: none.
    """

    block = 4
    nonexpansive = False

    def decompress(self, payload, ctx):
        return tf.cumsum(super().decompress(payload, ctx.lane(0)))


class Verbose(Honest):
    """Every value twice, and yet not all of it.

    Wire: values float32[2n].
    Paper: none.
    Differs: none.
    """

    def wire(self, spec):
        return {"values": tf.TensorSpec([2 * spec.shape.num_elements()], tf.float32)}

    def compress(self, x, ctx):
        return {"values": tf.tile(0.5 * tf.reshape(x, [-1]), [2])}

    def decompress(self, payload, ctx):
        return tf.reshape(payload["values"][: ctx.elements], ctx.spec.shape)


class PartialSum(Honest):
    """Forgets the last worker.

    Wire: values float16[n].
    Paper: none.
    Differs: none.
    """

    commutes_with_sum = False

    def aggregate(self, payloads, ctx):
        return sum(
            self.decompress({"values": payloads["values"][w]}, ctx) for w in range(ctx.size - 1)
        )


class Overflows(Honest):
    """Squares on the way.

    Wire: values float16[n].
    Paper: none.
    Differs: none.
    """

    def wire(self, spec):
        return {"values": tf.TensorSpec([-(-spec.shape.num_elements() // 2)], tf.float32)}

    def compress(self, x, ctx):
        flat = tf.reshape(x, [-1])[::2]
        return {"values": tf.sign(flat) * tf.sqrt(flat * flat)}

    def decompress(self, payload, ctx):
        flat = tf.repeat(payload["values"], 2)[: ctx.elements]
        return tf.reshape(
            flat * tf.constant([1.0, 0.0] * ctx.elements)[: ctx.elements], ctx.spec.shape
        )


class PrivateState(Honest):
    """Keeps its own gradient, which no other worker has.

    Wire: values float16[n].
    Paper: none.
    Differs: none.
    """

    def init_state(self, spec, ctx):
        return {"last": tf.zeros(spec.shape)}

    def rounds(self, xs, states, ctx):
        totals, sent, _ = yield from super().rounds(xs, states, ctx)
        return totals, sent, [{"last": x} for x in xs]


class GrowingState(PrivateState):
    __doc__ = PrivateState.__doc__

    def rounds(self, xs, states, ctx):
        totals, sent, _ = yield from super().rounds(xs, states, ctx)
        return totals, sent, [{"last": tf.reshape(t, [-1]), "more": t} for t in totals]


class OwnAggregate(Honest):
    """Each worker adds its own number.

    Wire: values float16[n].
    Paper: none.
    Differs: none.
    """

    def rounds(self, xs, states, ctx):
        totals, sent, states = yield from super().rounds(xs, states, ctx)
        return [t + tf.cast(ctx.worker, tf.float32) * 1e-3 for t in totals], sent, states


class Undocumented(Honest):
    """Says nothing."""


class AddsOne(Honest):
    """Zero is not zero.

    Wire: values float16[n].
    Paper: none.
    Differs: none.
    """

    nonexpansive = False
    commutes_with_sum = False
    homogeneous = False

    def decompress(self, payload, ctx):
        return super().decompress(payload, ctx) + 1.0


LIES = [
    (Biased, "is unbiased"),
    (Expansive, "is nonexpansive"),
    (Lossy, "is lossless"),
    (Clips, "is homogeneous"),
    (Gathers, "commutes with sum"),
    (PrivateDecoder, "decodes elsewhere"),
    (GlobalRandomness, "draws as it should"),
    (SameDraws, "draws as it should"),
    (WiderThanSaid, "wire is true"),
    (HalfEmpty, "payload is full"),
    (WrongBlock, "blocks decode alone"),
    (Verbose, "worth sending"),
    (PartialSum, "aggregates the sum"),
    (Overflows, "stays finite"),
    (PrivateState, "same on all workers"),
    (GrowingState, "state keeps its form"),
    (OwnAggregate, "same on all workers"),
    (Undocumented, "documents"),
    (AddsOne, "zero stays zero"),
    (Expansive, "converges"),
]
