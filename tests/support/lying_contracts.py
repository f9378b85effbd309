"""Compressors that break the contract, each in one way: what they are, announce, send, decode."""

import dataclasses

import tensorflow as tf
from lying_compressors import LIES, Honest, lie

import grace_tf


class Undocumented(Honest):
    """Says nothing."""


LIES.append((Undocumented, "documents", "has no section Wire:, Paper:, Differs:"))


# What it is.


@lie("constructs", "It has no hash")
class MutableHyperparameter(Honest):
    """A list as hyperparameter."""

    factors: list = dataclasses.field(default_factory=lambda: [0.5])


@lie("constructs", "builds .* instead of")
class DriftingHyperparameter(Honest):
    """Every construction doubles what was given, so a spec builds something else."""

    share: float = 0.25

    def __post_init__(self):
        object.__setattr__(self, "share", 2 * self.share)


@lie("constructs", "builds .* instead of|given twice|is written")
class TupleHyperparameter(Honest):
    """A tuple, which no spec can spell."""

    sizes: tuple = (1, 2)

    def __post_init__(self):
        object.__setattr__(self, "sizes", (*self.sizes, 3))


@lie("constructs", "unbiased is True or False, not 'yes'")
class TraitOfAnotherType(Honest):
    """A trait that is no bool."""

    unbiased = "yes"


@lie("constructs", "aggregates is 'sum' or 'consensus', not 'mean'")
class UnknownAggregate(Honest):
    """A way to aggregate that does not exist."""

    aggregates = "mean"


@lie("constructs", "block is a positive int or None, not 32.0")
class FractionalBlock(Honest):
    """A block size that is no integer."""

    block = 32.0


@lie("constructs", "row_share is a fraction in .* or None, not 25")
class PercentOfRows(Honest):
    """A share of rows that is no fraction."""

    row_share = 25


# What it announces.


@lie("wire is static", "a part has one axis")
class RankTwo(Honest):
    """Parts of rank 2."""

    def wire(self, spec):
        return {"values": tf.TensorSpec([1, spec.shape.num_elements()], tf.float16)}


@lie("wire is static", "has the shape .None,. in wire")
class OpenSize(Honest):
    """A size that is known at run time only."""

    def wire(self, spec):
        return {"values": tf.TensorSpec([None], tf.float16)}


@lie("wire is static", "is uint8; a part that is gathered is one of float32, int32")
class Bytes(Honest):
    """Bytes, which TensorFlow gathers nowhere."""

    commutes_with_sum = False

    def wire(self, spec):
        return {"values": tf.TensorSpec([spec.shape.num_elements()], tf.uint8)}


@lie("wire is static", "is uint16; a part that is all-reduced is one of float32, float16")
class SummedBits(Honest):
    """Bits of halves, which no network adds."""

    def wire(self, spec):
        return {"values": tf.TensorSpec([spec.shape.num_elements()], tf.uint16)}


@lie("wire is static", "two calls of wire give")
class GrowingWire(Honest):
    """Announces more on every call."""

    def __post_init__(self):
        object.__setattr__(self, "_calls", [])

    def wire(self, spec):
        self._calls.append(1)
        return {"values": tf.TensorSpec([len(self._calls)], tf.float16)}


@lie("wire is static", "nbytes says 8, its parts take")
class FewBytes(Honest):
    """Announces fewer bytes than its parts have."""

    def nbytes(self, spec):
        return 8


@lie("wire is static", "exact_parts names indexes; wire has values")
class MisspeltExactPart(Honest):
    """Names an exact part that does not exist."""

    exact_parts = ("indexes",)


@lie("wire is static", r"wire returns \{name: tf.TensorSpec\}")
class WireOfNumbers(Honest):
    """Announces sizes instead of specs."""

    def wire(self, spec):
        return {"values": spec.shape.num_elements()}


# What it sends.


@lie("wire is true", "wire says values float16.*the payload is values float32")
class WiderThanSaid(Honest):
    """float32 where float16 is announced."""

    commutes_with_sum = False

    def compress(self, x, ctx):
        return {"values": 0.5 * tf.reshape(x, [-1])}


@lie("wire is true", r"the payload is $|the payload is \.")
class MissingPart(Honest):
    """An empty payload."""

    def compress(self, x, ctx):
        return {}


@lie("wire is true", "the payload is count int32.*values float16")
class ExtraPart(Honest):
    """A part that was not announced."""

    def compress(self, x, ctx):
        return {**super().compress(x, ctx), "count": tf.constant([1])}


@lie("wire is true", r"Shape \(\), step 0: wire says values float16\[1\]; .* values float16\[\]")
class RankZero(Honest):
    """Keeps the shape of the gradient on the wire."""

    def compress(self, x, ctx):
        return {"values": tf.cast(0.5 * x, tf.float16)}


@lie("wire is true", "the payload is values float16")
class VaryingSize(Honest):
    """Sends only what is not small."""

    def compress(self, x, ctx):
        values = super().compress(x, ctx)["values"]
        return {"values": tf.boolean_mask(values, tf.abs(values) > 0.1)}


@lie("wire is true", r"step 1: wire says values float16\[4757\]; .* float16\[2378\]")
class SizeByStep(Honest):
    """Sends half of it on odd steps."""

    def compress(self, x, ctx):
        values = super().compress(x, ctx)["values"]
        return {"values": values[: ctx.elements // (1 + int(ctx.step) % 2)]}


@lie("wire is true", r"compress returns \{name: tensor\}, not")
class BareTensor(Honest):
    """A tensor instead of a dict of parts."""

    def compress(self, x, ctx):
        return super().compress(x, ctx)["values"]


@lie("wire is true", r"compress \(lying_contracts.py, line \d+\) raises .*: .*reshape")
class EvenOnly(Honest):
    """Folds in halves, which an odd number of elements refuses."""

    def compress(self, x, ctx):
        folded = tf.reshape(x, [2, ctx.elements // 2])
        return super().compress(folded, ctx)


# What it decodes.


@lie("shapes hold", r"decompress returns float16 of shape \(\) for a gradient of shape \(\)")
class HalfFloats(Honest):
    """Decodes to float16."""

    def decompress(self, payload, ctx):
        return tf.reshape(payload["values"], ctx.spec.shape)


@lie("shapes hold", "decompress returns float64")
class DoubleFloats(Honest):
    """Decodes to float64."""

    def decompress(self, payload, ctx):
        return tf.cast(super().decompress(payload, ctx), tf.float64)


@lie("shapes hold", r"decompress returns float32 of shape \(1,\) for a gradient of shape \(\)")
class Flat(Honest):
    """Forgets the shape."""

    def decompress(self, payload, ctx):
        return tf.cast(payload["values"], tf.float32)


@lie("shapes hold", r"decompress returns float32 of shape \(4,\) for a gradient of shape \(5,\)")
class ShortByOneAtOdd(Honest):
    """One element short, where there is an odd number of more than three."""

    def decompress(self, payload, ctx):
        n, x = ctx.elements, super().decompress(payload, ctx)
        return x[: n - 1] if n > 3 and n % 2 and x.shape.rank == 1 else x


@lie("shapes hold", "public context has no private random stream")
class PrivateDecoder(Honest):
    """Draws from the sender's stream while it decodes."""

    def decompress(self, payload, ctx):
        noise = grace_tf.ops.uniform(ctx.elements, ctx.key())
        return super().decompress(payload, ctx) + tf.reshape(noise, ctx.spec.shape)


@lie("rounds agree", r"The aggregate is float32 of shape \(1,\) for a gradient of shape \(\)")
class FlatAggregate(Honest):
    """Aggregates to a vector."""

    commutes_with_sum = False

    def aggregate(self, payloads, ctx):
        return tf.cast(tf.reduce_sum(payloads["values"], 0), tf.float32)


@lie("sums decode", r"claims commutes_with_sum, but of the sum of two payloads decompress \(")
class SummedIndices(Honest):
    """Lets the network add indices."""

    def wire(self, spec):
        return {"values": tf.TensorSpec([1], tf.float32), "indices": tf.TensorSpec([1], tf.int32)}

    def compress(self, x, ctx):
        x = tf.reshape(x, [-1])
        place = tf.argmax(tf.abs(x), output_type=tf.int32)[None]
        return {"values": tf.gather(x, place), "indices": place}

    def decompress(self, payload, ctx):
        places = payload["indices"][:, None]
        return tf.reshape(tf.scatter_nd(places, payload["values"], [ctx.elements]), ctx.spec.shape)
