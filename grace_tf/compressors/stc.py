"""`stc`: the signs of the largest elements, and one magnitude for all of them."""

from grace_tf.core.registry import get, recipe


@recipe("stc", family="hybrid", paper="arXiv:1903.02891", examples=("stc:ratio=0.1",))
def stc(ratio: float = 0.0025):
    """Sends the signs of the k = max(1, ⌊ratio·n⌋) largest elements, and their mean magnitude μ:
    C(x) = μ·sign(x) on them, else 0.

    It is topk whose values go through efsignsgd, and the memory "residual".  With T the elements
    that are sent ‖x − C(x)‖² = ‖x‖² − ‖T‖₁²/k.
    Shapes: any float32 tensor of fewer than 2^31 elements.
    Wire: values.signs int32[⌈k/32⌉], values.scales float32[1], indices
    int32[`index_sets.index_words(n, k)`], gathered: at 1/400 about 11.6 bits an element sent, where
    log2 C(n,k)/k + 1, which no code beats, is 11.1.
    Raises: ValueError for a ratio outside (0, 1].
    Paper: Sattler, Wiedemann, Müller, Samek 2019, Robust and Communication-Efficient Federated
    Learning from Non-IID Data: sparse ternary compression with error accumulation.
    Differs: indices in a code of fixed size, not in Golomb's.  Without a server there is no second
    compression on the way back: every worker gets the mean of what was sent.  Where fewer than k
    elements are not 0, zeros are sent too, as +μ, which the residual takes back.
    """
    return get("topk", ratio=ratio).then(values="efsignsgd"), "residual"
