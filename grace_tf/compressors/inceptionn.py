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
    """Sends each element with as few bits as keep its error below the bound ε = 2^-b:
    |x − C(x)| < ε, b = ⌈−log₂ error_bound⌉.

    |x| < 2^-b is not sent; |x| < 2^(7−b) is a sign and 7 bits, a fixed-point number in units of
    2^-b; |x| < 2^(15−b) is a sign and 15 bits, likewise; all others, and |x| ≥ 1, are float32.
    Fixed-point numbers are below 1, so their units are smaller for large bounds.  Numbers are
    truncated to their unit.
    Overflow: `bytes`, `halves` and `wholes` are the fractions of the elements that a payload has
    room for.  Where halves or floats of a variable do not fit, all elements take the classes of
    elements 2^s times smaller, with the least s that makes them fit: ε is 2^s times larger.  Where
    bytes do not fit, as many as fit are sent, in turns from step to step; the others stay in the
    residual, if there is one.  The counts hold s and the number of elements of each class.
    Shapes: any float32 tensor.
    Wire: tags int32[2·⌈n/32⌉], bytes int32[⌈B/4⌉], halves int32[⌈H/2⌉], wholes float32[W], counts
    int32[4], gathered, with B = max(1, ⌊bytes·n⌋) and so on: n/4 + B + 2H + 4W + 16 bytes on
    every step, 0.89·n by default.
    Raises: ValueError for an error_bound outside [2^-100, 1/2], or a fraction outside (0, 1].
    Paper: Li et al. 2018, A Network-Centric Hardware/Algorithm Co-Design to Accelerate
    Distributed Training of Deep Neural Networks: the compression of gradients.
    Differs: the edges of the classes follow from the bound, so that it holds for every bound; the
    payload has a fixed size, and the memory "residual" keeps what finds no room in it.
    """

    error_bound: float = 2.0**-10
    bytes: float = 0.5
    halves: float = 0.05
    wholes: float = 0.01

    nonexpansive = True
    fixed_size = False
    exact_parts = ("tags", "bytes", "halves", "counts")
    element_parts = ("wholes",)

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
        return Room(*[max(1, int(each * n)) for each in (self.bytes, self.halves, self.wholes)])

    def wire(self, spec):
        sizes = size_classes.lengths(spec.shape.num_elements(), self._room(spec))
        return {
            name: tf.TensorSpec([size], tf.float32 if name == "wholes" else tf.int32)
            for name, size in sizes._asdict().items()
        }

    def encode(self, xs, residuals, multiplier, ctx):
        rooms = [self._room(spec) for spec in ctx.specs]
        parts, *rest = size_classes.encode_classes(
            xs, residuals, multiplier, self._bound, rooms, ctx.step
        )
        return Encoded(parts._asdict(), *rest)

    def decode(self, payload, factor, ctx):
        rooms = [self._room(spec) for spec in ctx.specs]
        parts = Classes(**payload)
        return size_classes.decode_classes(parts, ctx.shapes, factor, self._bound, rooms)
