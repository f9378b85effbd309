"""Compressors that are wrong at some lengths only."""

import tensorflow as tf
from lying_compressors import Honest, lie


class Masked(Honest):
    """Decodes to zero where `kept` says so."""

    def kept(self, places, n):
        raise NotImplementedError

    def decompress(self, payload, ctx):
        x = tf.reshape(super().decompress(payload, ctx), [-1])
        kept = self.kept(tf.range(ctx.elements), ctx.elements)
        return tf.reshape(tf.where(kept, x, 0.0), ctx.spec.shape)


@lie("every element counts", r"shape \(7,\), 3 elements .4, 5, 6. had no effect")
class DropsRestOfFour(Masked):
    """Loses the last n mod 4 elements where n is odd."""

    def kept(self, places, n):
        return places < (n - n % 4 if n % 2 and n > 4 else n)


@lie("every element counts", r"shape \(37,\), 5 elements \(32")
class DropsRestOfWord(Masked):
    """Loses what fills no word of 32 bits."""

    def kept(self, places, n):
        return places < (n - n % 32 if n > 32 else n)


@lie("every element counts", r"shape \(37,\), element 36 had no effect")
class LosesTheLast(Masked):
    """Loses the last of more than 32 elements."""

    def kept(self, places, n):
        return places < (n - 1 if n > 32 else n)


@lie("every element counts", r"Of gradients of shape \(1,\) nothing is ever sent")
class NothingOfOne(Masked):
    """Loses a gradient of a single element."""

    def kept(self, places, n):
        return places < (n if n > 1 else 0)


@lie("every element counts", r"shape \(5, 7\), 3\d elements")
class Transposes(Honest):
    """Decodes matrices as if their columns had been sent."""

    nonexpansive = False

    def decompress(self, payload, ctx):
        if ctx.spec.shape.rank != 2:
            return super().decompress(payload, ctx)
        rows, columns = ctx.spec.shape
        x = tf.reshape(tf.cast(payload["values"], tf.float32), [columns, rows])
        return tf.transpose(x)


@lie("every element counts", r"shape \(7,\), [67] elements")
class Shifts(Honest):
    """Puts every element of an odd number of them one place further."""

    nonexpansive = False

    def decompress(self, payload, ctx):
        n, values = ctx.elements, payload["values"]
        if 1 < n < 1000 and n % 2:
            values = tf.roll(values, 1, 0)
        return super().decompress({"values": values}, ctx)


class WrongWhenLarge(Honest):
    """Decodes something else above 100 000 elements."""

    nonexpansive = False

    def large(self, x):
        raise NotImplementedError

    def decompress(self, payload, ctx):
        x = super().decompress(payload, ctx)
        return self.large(x) if ctx.elements > 100_000 else x


@lie("large as small", "Of a gradient of 87377 elements 0.5 .* of one of 131101 elements 0")
class NothingWhenLarge(WrongWhenLarge):
    """Zeros above 100 000 elements."""

    def large(self, x):
        return 0.0 * x


@lie("large as small", "of one of 131101 elements 0.25")
class LessWhenLarge(WrongWhenLarge):
    """Half of it above 100 000 elements."""

    def large(self, x):
        return 0.5 * x


@lie("large as small", "of one of 131101 elements")
class ReversedWhenLarge(WrongWhenLarge):
    """Back to front above 100 000 elements."""

    def large(self, x):
        return tf.reshape(tf.reverse(tf.reshape(x, [-1]), [0]), x.shape)


@lie("all of a large one", "nothing of elements 106519 to 114713")
class NothingBeyond(Masked):
    """Decodes the first 100 000 elements."""

    def kept(self, places, n):
        return places < 100_000


@lie("all of a large one", "nothing of elements 655")
class ShortIndices(Masked):
    """Counts elements in 16 bits."""

    def kept(self, places, n):
        return places < 2**16


@lie("shapes hold", r"shape \(65536,\) for a gradient of shape \(131101,\)")
class CapacityOf16Bits(Honest):
    """Decodes 65536 elements at most."""

    def decompress(self, payload, ctx):
        x = super().decompress(payload, ctx)
        return x[:65536] if ctx.elements > 65536 and x.shape.rank == 1 else x


@lie("wire is true", r"Shape \(131101,\), step 0: wire says")
class ShortWhenLarge(Honest):
    """Sends 65536 elements at most, whatever it announced."""

    def compress(self, x, ctx):
        return {"values": super().compress(x, ctx)["values"][:65536]}


@lie("is homogeneous", "8 times a gradient of 131101 elements does not scale")
class ClipsWhenLarge(WrongWhenLarge):
    """Cuts at one above 100 000 elements."""

    def large(self, x):
        return tf.clip_by_value(x, -1.0, 1.0)


@lie("zero stays zero", "not zero")
class NotZeroWhenLarge(WrongWhenLarge):
    """Adds a little above 100 000 elements."""

    homogeneous = False

    def large(self, x):
        return x + 1e-3
