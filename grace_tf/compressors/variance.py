"""`variance`: elements of accumulated gradients that are large compared to their variance."""

from grace_tf.core.registry import get, get_memory, recipe


@recipe(
    "variance",
    family="sparsification",
    paper="arXiv:1802.06058",
    examples=("variance:alpha=2.0,decay=0.99", "variance:capacity=0.25"),
)
def variance(alpha: float = 1.5, decay: float = 0.999, capacity: float = 0.05):
    """Sends the accumulated gradients that are large compared to their variance: r ← r + x,
    v ← v + Σ (xᵢ/k)²; r where r² > α·v, else 0; x is the mean of k micro-batches' gradients xᵢ.

    It is threshold with threshold=0, and the memory variance, which applies this rule;
    `alpha` is α.  Where an element is sent, v becomes 0; elsewhere `decay` is its factor.  At most
    m = max(1, ⌊capacity·n⌋) elements are sent, the largest of those with r² > α·v; the others stay
    in r.
    Use `topk` with the same ratio: it is as accurate at the same bytes (docs/training.md), and its
    residual is half the state.
    Shapes: any float32 tensor of fewer than 2^31 elements.
    Wire: values float32[m], indices int32[`index_sets.index_words(n, m)`], count int32[1],
    gathered, on every step, as threshold.
    State: r and v, float32, the variable's shape.
    Raises: ValueError or TypeError for an α below 1, or a decay or capacity outside (0, 1].
    Paper: Tsuzuku, Imachi, Akiba 2018, Variance-based Gradient Compression for Efficient
    Distributed Deep Learning, algorithm 1.
    Differs: a sample is the gradient of a micro-batch where the optimizer accumulates them
    (`gradient_accumulation_steps`), else of a step; the paper takes those of single examples, which
    Keras does not compute.  The memory `variance` says where micro-batches cannot be seen.  Values
    are sent whole, not as a sign and 3 bits of exponent.
    """
    memory = get_memory(f"variance:alpha={alpha!r},decay={decay!r}")
    return get("threshold", threshold=0.0, capacity=capacity), memory
