"""`qsparse`: the largest elements, quantised."""

from grace_tf.core.registry import get, recipe


@recipe(
    "qsparse",
    family="hybrid",
    paper="arXiv:1906.02367",
    examples=("qsparse:ratio=0.1,bits=8",),
)
def qsparse(ratio: float = 0.01, bits: int = 4):
    """Sends the k = max(1, ⌊ratio·n⌋) largest elements by a quantiser of `bits` bits: C(x) =
    Q(x on them), else 0, with s = 2^(bits−1) − 1.

    It is topk whose values go through qsgd with rounding to the nearest, with the memory
    "residual", which keeps the unselected elements and the quantiser's error.
    ‖x − C(x)‖² = ‖x − Top_k(x)‖² + ‖Top_k(x) − C(x)‖² ≤ ‖x‖².
    Shapes: any float32 tensor of fewer than 2^31 elements.
    Wire: values.levels int32[⌈k/32⌉·bits], values.scales float32[⌈k/512⌉], indices
    int32[`index_sets.index_words(n, k)`], gathered: with 4 bits at 1 % about 12.6 bits an element
    sent.
    Raises: ValueError for a ratio outside (0, 1]; ValueError or TypeError for bits outside 2 to 16.
    Paper: Basu, Data, Karakus, Diggavi 2019, Qsparse-local-SGD: the operator QTop_k with error
    compensation, workers in step.
    Differs: rounds to the nearest of levels under the largest magnitude of each 512 values.  The
    paper rounds at random under their 2-norm, and divides by 1 + β so that the memory stays
    bounded, β being the quantiser's variance; rounding to the nearest needs no such factor.  No
    local steps: workers exchange at every one.
    """
    quantiser = get("qsgd", bits=bits, rounding="nearest")
    return get("topk", ratio=ratio).then(values=quantiser), "residual"
