"""`adacomp`: of each bin the elements that the last gradient made large, as ±S."""

from grace_tf.core.hyperparameters import check_integer
from grace_tf.core.registry import get, get_memory, recipe


@recipe(
    "adacomp",
    family="hybrid",
    paper="arXiv:1712.02679",
    examples=("adacomp:bin=50", "adacomp:bin=50,room=50"),
)
def adacomp(bin: int = 500, room: int = 8):
    """Sends ±S for the elements of accumulated gradients that the last one made as large as their
    bin's largest: G = R + x; S·sign(G) where |G + x| ≥ max |G| over the bin, else 0.

    It is adaq with ratio = room/bin, and the memory adacomp.  Bins are runs of `bin` elements of
    one variable, S is the mean of their max |G|.  A payload has room for `room` elements a bin on
    average.  Elements beyond that stay in R.
    Prefer `adaq` with the same ratio.  It is as accurate in docs/training.md, and simpler.
    Shapes: any float32 tensor of fewer than 2^31 elements.
    Wire: as adaq: means float32[2], signs int32[⌈k/32⌉], indices int32[`index_sets.index_words(n,
    k)`], count int32[1], with k = max(1, ⌊n·room/bin⌋), gathered: n/56 bytes by default.
    State: R, float32, the variable's shape.
    Raises: ValueError or TypeError for a bin below 1, or a room outside 1 … bin.
    Paper: Chen et al. 2018, AdaComp: Adaptive Residual Gradient Compression for Data-Parallel
    Distributed Training, algorithms 1 and 2: bins of 50 in convolutions and of 500 elsewhere.
    Differs: payloads have a fixed size; one length of bins for all variables.
    """
    memory = get_memory(f"adacomp:bin={bin!r}")
    check_integer("adacomp", "room", room, 1, bin)
    return get("adaq", ratio=room / bin), memory
