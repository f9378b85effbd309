"""`loco`: codes of four bits, and a filtered residual of one byte an element."""

from grace_tf.core.registry import get, get_memory, recipe


@recipe("loco", family="quantisation", paper="arXiv:2407.04480", examples=("loco:bits=8,beta=1.0",))
def loco(bits: int = 4, beta: float = 0.2, reset: int = 1024):
    """Sends the nearest of 2^bits − 1 levels of each block of 512 elements: C(x) =
    c·round(s·x/c)/s, c the block's largest magnitude and s = 2^(bits−1) − 1 levels a side.

    It is qsgd with `rounding="nearest"`, and the memory lowpass with int8: e ← (1 − β)·e + β·(x + e
    − sent), which becomes 0 at the end of every reset-th step.  What it holds then is lost.
    Shapes: any float32 tensor.
    Wire: levels int32[⌈n·bits/32⌉] and scales float32[⌈n/512⌉], as qsgd; in two hops from 4 workers
    on.
    State: one byte an element and a scale for each block, as the residual of dtype int8.
    Raises: ValueError or TypeError for bits that qsgd does not have, a β outside (0, 1], or a reset
    that is no integer of at least 1.
    Paper: Xie, Lin, Toh, Zhou 2024, LoCo: Low-Bit Communication Adaptor for Large-scale Model
    Training: 4 bits, 8 bits of error, β = 0.2 and resets.
    Differs: scales are of blocks and chosen in each step, not one fixed number for all.
    """
    memory = get_memory(f"lowpass:beta={beta!r},dtype=int8,reset={reset!r}")
    return get("qsgd", bits=bits, rounding="nearest"), memory
