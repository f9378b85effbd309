"""`signum`: signs of a moving average, and a majority vote."""

from grace_tf.core.registry import get, recipe
from grace_tf.memories.momentum import Momentum


@recipe(
    "signum",
    family="quantisation",
    paper="arXiv:1802.04434",
    examples=("signum:momentum=0.5",),
)
def signum(momentum: float = 0.9):
    """Sends the signs of a moving average: m ← β·m + (1 − β)·x, C(m) = ±1, sign(0) = +1.

    It is signsgd with the memory "momentum"; β is `momentum`.  m begins at 0, and each worker has
    its own.  The aggregate is the majority's vote, 0 for a tie: a consensus, never divided by the
    number of workers, so the learning rate is the step size: begin with SGD(0.001).
    Shapes: any float32 tensor.
    Wire: signs int32[⌈n/32⌉], gathered: n/8 bytes, rounded up to a word.
    State: momentum float32 per variable, each worker's own.
    Raises: TypeError for a momentum that is no number, ValueError for one outside [0, 1).
    Paper: Bernstein et al. 2018, signSGD, algorithm 2 (Signum) with the vote of algorithm 3.
    Differs: a tied vote gives 0 (the paper leaves it open); m is not corrected for its start at 0,
    which changes no sign.  An optimizer with a momentum of its own is refused.
    """
    return get("signsgd"), Momentum(momentum)
