"""A compressor that claims the truth, and others that are wrong, each in one way.

`LIES` lists every wrong one with the check of the suite that must name it, and words of its
sentence.  Those here encode or claim wrongly; `lying_contracts` and `lying_workers` add theirs.
"""

import tensorflow as tf

import grace_tf

LIES = []
SECTIONS = """

    Wire: values float16[n].
    Paper: none.
    Differs: none.
    """


def lie(check, words):
    """Adds a wrong compressor to `LIES`, with the sections that a docstring needs."""

    def add(cls):
        cls.__doc__ += SECTIONS
        LIES.append((cls, check, words))
        return cls

    return add


class Honest(grace_tf.Compressor):
    """Half of every element: a contraction that claims nothing else.

    Wire: values float16[n].
    Paper: none.
    Differs: none.
    """

    nonexpansive = True
    homogeneous = True
    commutes_with_sum = True

    def wire(self, spec):
        return {"values": tf.TensorSpec([spec.shape.num_elements()], tf.float16)}

    def encode(self, x, ctx):
        return 0.5 * x

    def compress(self, x, ctx):
        return {"values": tf.cast(self.encode(tf.reshape(x, [-1]), ctx), tf.float16)}

    def decompress(self, payload, ctx):
        return tf.cast(tf.reshape(payload["values"], ctx.spec.shape), tf.float32)


# Claims.


@lie("is unbiased", "standard errors off")
class Biased(Honest):
    """A hundredth is missing."""

    unbiased = True

    def encode(self, x, ctx):
        return 0.99 * x


@lie("is unbiased", r"Shape \(1,\): the mean of element .* is off")
class BiasedWhenShort(Honest):
    """Halves vectors of fewer than 32 elements."""

    unbiased = True

    def encode(self, x, ctx):
        return x if ctx.elements >= 32 else 0.5 * x


@lie("error is bounded", "a mean relative error of")
class Loose(Honest):
    """Rounds more than its bound says."""

    def relative_bound(self, spec):
        return 1e-5

    def encode(self, x, ctx):
        return tf.round(8 * x) / 8


@lie("is nonexpansive", "an error of")
class Expansive(Honest):
    """Points the other way."""

    def encode(self, x, ctx):
        return -0.01 * x


@lie("is nonexpansive", "'one hot': an error of")
class ExpansiveAtSpikes(Honest):
    """Triples a gradient of a single spike."""

    homogeneous = False
    commutes_with_sum = False

    def encode(self, x, ctx):
        return tf.where(tf.reduce_sum(tf.cast(x != 0, tf.int32)) == 1, 3 * x, 0.5 * x)


@lie("is nonexpansive", "'constant': an error of")
class ExpansiveWhenEqual(Honest):
    """Triples a gradient of equal elements."""

    homogeneous = False
    commutes_with_sum = False

    def encode(self, x, ctx):
        return tf.where(tf.reduce_max(x) == tf.reduce_min(x), 3 * x, 0.5 * x)


@lie("is nonexpansive", "'tiny': an error of")
class ExpansiveWhenTiny(Honest):
    """Sends at least the smallest normal half float."""

    homogeneous = False
    commutes_with_sum = False

    def encode(self, x, ctx):
        floor = tf.constant(6.2e-5)
        return tf.where((tf.abs(x) < floor) & (x != 0), tf.sign(x) * floor, 0.5 * x)


@lie("is lossless", "does not come back as it was")
class Lossy(Honest):
    """Half of it is not all of it."""

    lossless = True


class Whole(Honest):
    """All of it, in float32.

    Wire: values float32[n].
    Paper: none.
    Differs: none.
    """

    lossless = True

    def wire(self, spec):
        return {"values": tf.TensorSpec([spec.shape.num_elements()], tf.float32)}

    def compress(self, x, ctx):
        return {"values": self.encode(tf.reshape(x, [-1]), ctx)}

    def encode(self, x, ctx):
        return x


@lie("is lossless", "does not come back as it was")
class LosesNegativeZero(Whole):
    """Turns -0.0 into 0.0."""

    def encode(self, x, ctx):
        return tf.where(tf.equal(x, 0.0), 0.0, x)


@lie("is lossless", "bits of NaNs do not come back")
class SwallowsNaN(Whole):
    """Sends zeros instead of NaNs."""

    def encode(self, x, ctx):
        return tf.where(tf.math.is_nan(x), 0.0, x)


@lie("is elementwise", r"Elements \[1, 2, 3, 4, 5, 6, 7\] are never sent")
class Selects(Honest):
    """Nothing but the first element."""

    elementwise = True

    def encode(self, x, ctx):
        return 0.5 * x * tf.one_hot(0, x.shape[0])


@lie("element parts are elements", "'values' stand for more than one element")
class OneForAll(Honest):
    """Sends the mean, and decodes every element as the mean."""

    nonexpansive = homogeneous = False
    element_parts = ("values",)

    def wire(self, spec):
        return {"values": tf.TensorSpec([1], tf.float16)}

    def compress(self, x, ctx):
        return {"values": tf.cast(tf.reshape(tf.reduce_mean(x), [1]), tf.float16)}

    def decompress(self, payload, ctx):
        return tf.cast(payload["values"][0], tf.float32) + tf.zeros(ctx.spec.shape)


@lie("is homogeneous", "times the gradient does not scale")
class Clips(Honest):
    """Cuts at one."""

    def encode(self, x, ctx):
        return 0.5 * tf.clip_by_value(x, -1.0, 1.0)


@lie("commutes with sum", "off the sum of what was sent")
class SumsRoots(Honest):
    """Sends roots: their sum decodes to something else."""

    homogeneous = False

    def encode(self, x, ctx):
        return tf.sign(x) * tf.sqrt(tf.abs(x))

    def decompress(self, payload, ctx):
        values = super().decompress(payload, ctx)
        return values * tf.abs(values)


@lie("zero stays zero", "not zero")
class AddsOne(Honest):
    """Zero is not zero."""

    nonexpansive = False
    commutes_with_sum = False
    homogeneous = False

    def decompress(self, payload, ctx):
        return super().decompress(payload, ctx) + 1.0


@lie("payload is full", "elements of 'values' are used")
class HalfEmpty(Honest):
    """Sends what is large and positive, packed to the front."""

    commutes_with_sum = False
    homogeneous = False
    nonexpansive = False

    def encode(self, x, ctx):
        return tf.sort(tf.nn.relu(x - 3.0), direction="DESCENDING")


@lie("blocks decode alone", "do not decode alone")
class WrongBlock(Honest):
    """Differences of neighbours, which no slice can undo."""

    block = 4
    nonexpansive = False

    def decompress(self, payload, ctx):
        x = tf.cumsum(tf.cast(payload["values"], tf.float32))
        return tf.reshape(x, ctx.spec.shape)


@lie("worth sending", "bytes carry less than")
class Verbose(Whole):
    """Every value twice, and yet not all of it."""

    lossless = False

    def wire(self, spec):
        return {"values": tf.TensorSpec([2 * spec.shape.num_elements()], tf.float32)}

    def encode(self, x, ctx):
        return tf.tile(0.5 * x, [2])

    def decompress(self, payload, ctx):
        return tf.reshape(payload["values"][: ctx.elements], ctx.spec.shape)


@lie("stays finite", "makes .* non-finite")
class Overflows(Whole):
    """Squares on the way."""

    lossless = False

    def encode(self, x, ctx):
        return 0.5 * tf.sign(x) * tf.sqrt(x * x)


@lie("exact parts are named", "The part 'values' does not stand a change of 1/256")
class IndicesAsFloats(Honest):
    """Sends the place of the largest element as a float and does not call it exact."""

    commutes_with_sum = False

    def wire(self, spec):
        return {"values": tf.TensorSpec([2], tf.float32)}

    def compress(self, x, ctx):
        x = tf.reshape(x, [-1])
        place = tf.argmax(tf.abs(x))
        return {"values": tf.stack([tf.cast(place, tf.float32), x[place]])}

    def decompress(self, payload, ctx):
        place, value = tf.unstack(payload["values"])
        return tf.reshape(
            value * tf.one_hot(tf.cast(place, tf.int32), ctx.elements), ctx.spec.shape
        )


# Random numbers.


@lie("draws as it should", "Another step draws the same numbers")
class SameDraws(Honest):
    """Opens the private stream and then draws from a fixed one."""

    def encode(self, x, ctx):
        ctx.key()
        return x * grace_tf.ops.uniform(ctx.elements, grace_tf.ops.Key(1, 2, 3, 4, 5))


@lie("draws as it should", "two workers draw the same numbers")
class SharedInsteadOfPrivate(Honest):
    """Opens the private stream and then draws from the shared one."""

    def encode(self, x, ctx):
        ctx.key()
        return x * grace_tf.ops.uniform(ctx.elements, ctx.shared_key())


@lie("draws as it should", "It depends on ctx.seed by itself")
class SeedByHand(Honest):
    """Draws from seed and step, the same for all variables and workers."""

    def encode(self, x, ctx):
        return x * tf.random.stateless_uniform(x.shape, tf.stack([ctx.seed, ctx.step]))
