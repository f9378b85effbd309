"""`ecqsgd`: qsgd, and a decaying part of the error that it made."""

from grace_tf.core.registry import get, get_memory, recipe


@recipe(
    "ecqsgd",
    family="quantisation",
    paper="arXiv:1806.08054",
    examples=("ecqsgd:bits=2", "ecqsgd:bits=8,alpha=0.5,block=128"),
)
def ecqsgd(bits: int = 4, block: int | None = 512, alpha: float = 0.1, beta: float = 0.9):
    """Sends levels of the gradient and a part of the accumulated error: C(x + α·h), with C of qsgd
    and h ← β·h + (x − C(x + α·h)).

    It is qsgd, which rounds at random, with the memory ecq; `alpha` is α, `beta` is β.
    Use `qsgd` of the same bits, which is as accurate (docs/training.md) and keeps no state, or
    `eden`, whose error is smaller.
    Shapes: any float32 tensor.
    Wire: levels int32[b·⌈n/32⌉] as bit planes with b = `bits`, and scales float32[⌈n/block⌉], as
    qsgd: about n·(b/8 + 4/block) bytes.
    State: h, float32, the variable's shape.
    Raises: ValueError or TypeError for bits or a block that qsgd does not have, an α or β outside
    (0, 1]; ValueError (at construction of the door) where α²γ + (β − α)² is not below 1, γ the
    bound of qsgd's relative error for a matrix of 1024 × 1024 elements, as h could then grow
    without bound.
    Paper: Wu, Huang, Huang, Zhang 2018, Error Compensated Quantized SGD and its Applications to
    Large-scale Distributed Optimization.
    Differs: the maximum of each block as scale, 4 bits in blocks of 512 by default; levels are
    bit-packed, not entropy-coded; the condition is checked.
    """
    return get("qsgd", bits=bits, block=block), get_memory(f"ecq:alpha={alpha!r},beta={beta!r}")
