"""`inceptionn`: numbers of 0, 8, 16 or 32 bits, by the magnitude of the element."""

from __future__ import annotations

import math

import tensorflow as tf

from grace_tf.core.hyperparameters import check_fraction, check_number
from grace_tf.core.list_compressor import Encoded, ListCompressor
from grace_tf.core.registry import register
from grace_tf.ops import size_classes
from grace_tf.ops.size_classes import Classes, Room


@register(
    "inceptionn",
    family="quantisation",
    paper="doi:10.1109/MICRO.2018.00023",
    examples=("inceptionn:error_bound=1e-06,bytes=1.0,halves=0.25,wholes=0.1",),
)
class Inceptionn(ListCompressor):
    """Sends each element as nothing, 8, 16 or 32 bits, by its magnitude: with an origin 2^o that
    follows from the tensor's largest exponents, a least size 2^l and a unit 2^u.

    |x| < 2^l is not sent; |x| < 2^(u+7) is a sign and 7 bits, |x| < 2^(u+15) a sign and 15 bits,
    fixed-point numbers in units of 2^u, to which they are truncated; all others are float32.
    o is the least exponent beyond which, |x| ≥ 2^o, are at most `wholes`·n elements, so that
    gradients of any scale, and with outliers, are coded alike.
    l and u, l − 15 ≤ u ≤ l, are the exponents with the least error, as the number of elements of
    each exponent lets it expect, whose numbers fit in the payload and with
    2^l ≥ error_bound·2^o (the bound is rounded down to a power of two).
    Overflow: `bytes`, `halves` and `wholes` are fractions of the elements, and a payload has room
    for that many numbers of each kind together; what one kind leaves serves the others.  Room that
    is left after all elements of 2^l and more takes some of 2^(l−1) and more, in turns from step
    to step.  What finds no room stays in the residual, if there is one.  The counts hold u and the
    number of elements of each class.
    Shapes: any float32 tensor.
    Wire: tags int32[2·⌈n/32⌉], numbers int32[⌈(B + 2H + 4W)/4⌉], counts int32[4], gathered, with
    B = max(1, ⌊bytes·n⌋) and so on: n/4 + B + 2H + 4W + 16 bytes on every step, 0.89·n by default.
    Raises: ValueError for an error_bound outside [2^-100, 1/2], or a fraction outside (0, 1].
    Paper: Li et al. 2018, A Network-Centric Hardware/Algorithm Co-Design to Accelerate
    Distributed Training of Deep Neural Networks: the compression of gradients.
    Differs: the paper's classes have fixed edges for |x| < 1, its bound is absolute and its payload
    as long as it comes out; here edges and bound follow from the tensor, the payload has a fixed
    size, and the memory "residual" keeps what finds no room in it.
    """

    error_bound: float = 2.0**-24
    bytes: float = 0.5
    halves: float = 0.05
    wholes: float = 0.01

    nonexpansive = True
    fixed_size = False
    exact_parts = ("tags", "numbers", "counts")

    def __post_init__(self):
        check_number("inceptionn", "error_bound", self.error_bound)
        if not 2.0**-100 <= self.error_bound <= 0.5:
            raise ValueError(
                f"inceptionn: error_bound is from 2^-100 to 1/2, not {self.error_bound!r}."
            )
        for name in ("bytes", "halves", "wholes"):
            check_fraction("inceptionn", name, getattr(self, name))

    @property
    def _bound(self):
        """b, where 2^-b is the largest power of two that is not above the bound."""
        return 1 - math.frexp(self.error_bound)[1]

    def _room(self, spec):
        n = spec.shape.num_elements()
        each = [max(1, int(part * n)) for part in (self.bytes, self.halves, self.wholes)]
        return Room(-(-(each[0] + 2 * each[1] + 4 * each[2]) // 4), outliers=each[2])

    def wire(self, spec):
        sizes = size_classes.lengths(spec.shape.num_elements(), self._room(spec))
        return {name: tf.TensorSpec([size], tf.int32) for name, size in sizes._asdict().items()}

    def encode(self, xs, residuals, multiplier, ctx):
        rooms = [self._room(spec) for spec in ctx.specs]
        parts, *rest = size_classes.encode_classes(
            xs, residuals, multiplier, self._bound, rooms, ctx.step
        )
        return Encoded(parts._asdict(), *rest)

    def decode(self, payload, factor, ctx):
        rooms = [self._room(spec) for spec in ctx.specs]
        return size_classes.decode_classes(Classes(**payload), ctx.shapes, factor, rooms)
