"""Test gradients: shapes that break packing, values that break arithmetic."""

from __future__ import annotations

import numpy as np

QUICK_SHAPES: tuple[tuple[int, ...], ...] = (
    *((), (1,), (2,), (3,), (5,), (6,), (7,), (31,), (32,), (33,), (257,)),
    *((7, 5), (2, 3, 4), (3, 3, 4, 8), (131_101,)),
)
SHAPES = (
    *QUICK_SHAPES,
    *((4,), (8,), (9,), (15,), (16,), (17,), (63,), (64,), (65,), (127,), (128,), (129,)),
    *((255,), (256,), (511,), (512,), (513,), (1021,), (1024,), (1025,), (4095,), (4097,)),
    *((1, 1), (1, 5), (5, 1), (64, 64), (1, 1, 1, 1), (2, 1, 3, 1, 5), (1031, 1021)),
)

# Vectors each at most 1.5 times as long as the one before, so that no length is skipped over.
LADDER = (
    *(1009, 1511, 2267, 3407, 5107, 7669, 11_503, 17_257, 25_889, 38_833, 58_249, 87_377),
    *(131_101, 196_661, 294_997, 442_501, 663_767, 995_663, 2**20 + 7),
)
QUICK_LADDER = (58_249, 87_377, 131_101)
LARGE = ((131_101,), (2**20 + 7,), (1031, 1021))

# Primes and products of primes: dividing such a length leaves a remainder.
ODD = ((1,), (2,), (3,), (5,), (7,), (37,), (521,), (5, 7), (2, 3, 5))
QUICK_ODD = ((1,), (7,), (37,), (5, 7))

# A matrix that every family compresses, with a tail that fills no word of 32 elements.
MAIN = (67, 71)


def normal(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Standard normal, float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def away_from_zero(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Normal values moved away from zero: no rounding of 16-bit floats meets their denormals."""
    x = normal(shape, seed)
    return np.copysign(np.abs(x) + np.float32(0.01), x)


def adversarial(shape: tuple[int, ...], huge: float = 1e30) -> dict[str, np.ndarray]:
    """Gradients by name that have broken codecs before; no magnitude exceeds `huge`."""
    n = int(np.prod(shape))
    rng = np.random.default_rng(11)
    random = rng.standard_normal(n)
    places = np.arange(n)
    flat = {
        "zero": np.zeros(n),
        "constant": np.full(n, 0.3),
        "negative": np.full(n, -2.0),
        "alternating": np.where(places % 2, 1.0, -1.0),
        "one hot": (places == n // 2) * 1.0,
        "last only": (places == n - 1) * -3.0,
        "sparse": random * (rng.random(n) < 0.02),
        "outlier": np.where(places == n // 3, min(1e4, huge), random),
        "many scales": np.sign(random) * 10.0 ** rng.uniform(-8, 3, n),
        "half steps": (rng.integers(0, 15, n) + 0.5) / 14,
        "ascending": places / n,
        "first only": (places == 0) * 0.7,
        "two spikes": (places % (n // 2) == 1) * 2.0,
        "one beside tiny": np.where(places == n // 5, 1.0, random * 1e-6),
        "ties": np.sign(random) * 2.0 ** rng.integers(-2, 1, n),
        "whole numbers": np.rint(3 * random),
        "just below one": np.full(n, 1 - 2.0**-24),
        "powers of two": np.sign(random) * 2.0 ** rng.integers(-12, 3, n),
        "huge": random * (huge / 8),
        "tiny": random * 1e-30,
        "denormal": random * 1e-40,
        "negative zero": np.full(n, -0.0),
    }
    return {name: x.astype(np.float32).reshape(shape) for name, x in flat.items()}


def evidence(x: np.ndarray, sent: np.ndarray) -> np.ndarray:
    """For each of n elements: how often x and sent agree in sign, in standard deviations."""
    agreement = np.sign(x) * np.sign(sent)
    return agreement.sum(0) / np.sqrt(np.maximum(np.abs(agreement).sum(0), 1))


def not_numbers(shape: tuple[int, ...]) -> np.ndarray:
    """Infinities and quiet NaNs with various payload bits, in turn, float32."""
    bits = np.array([0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345, 0x7FEABCDE], np.uint32)
    return np.resize(bits, shape).view(np.float32)


def random_directions(count: int, shape: tuple[int, ...]) -> np.ndarray:
    """`count` vectors of random signs, float64 `[count, n]`."""
    n = int(np.prod(shape))
    return np.random.default_rng(5).choice([-1.0, 1.0], size=(count, n))
