"""Gradients to try: shapes that break packing, values that break arithmetic."""

from __future__ import annotations

import numpy as np

SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (31,), (32,), (33,), (257,), (7, 5), (3, 3, 4, 8))

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
        "huge": random * (huge / 8),
        "tiny": random * 1e-30,
        "denormal": random * 1e-40,
        "negative zero": np.full(n, -0.0),
    }
    return {name: x.astype(np.float32).reshape(shape) for name, x in flat.items()}


def random_directions(count: int, shape: tuple[int, ...]) -> np.ndarray:
    """`count` vectors of random signs, float64 `[count, n]`."""
    n = int(np.prod(shape))
    return np.random.default_rng(5).choice([-1.0, 1.0], size=(count, n))
