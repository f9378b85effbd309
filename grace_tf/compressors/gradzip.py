"""`gradzip`: powersgd whose factors are ridge regressions."""

from grace_tf.core.registry import get, recipe


@recipe("gradzip", family="low rank", paper="-", examples=("gradzip:rank=2,ridge=1.0",))
def gradzip(rank: int = 4, ridge: float = 0.1):
    """Sends a rank-r factorisation by alternating ridge regressions: P = M Q (QᵀQ + λI)⁻¹.

    It is powersgd with `ridge` λ, and the memory "residual".  (QᵀQ + λI)⁻¹ is regular, so P spans
    what M Q spans, the same space as powersgd's, and its basis A serves both: C(M) = A Aᵀ M / (1 +
    λ).  Use powersgd: for the same bytes it sends 1 + λ times as much of the gradient in a step.
    ‖M − C(M)‖² = ‖M‖² − (1 + 2λ)/(1 + λ)²·‖Aᵀ M‖².
    Shapes: any float32 tensor.
    Wire: p float32[a·r] and q float32[b·r] of a matrix [a, b], two rounds of all-reduce, or dense
    float32[n], as powersgd.
    Raises: ValueError for a rank below 1 or a ridge below 0.
    Paper: Cho, Muthusamy, Nemanich, Puri 2019, GradZip: Gradient Compression using Alternating
    Matrix Factorization for Large-scale Deep Learning, NeurIPS workshop on Systems for ML.
    Differs: P is made orthonormal before Q is regressed on it.  With the paper's own P, λ has the
    unit of a squared gradient: the smaller the gradients of a layer are, the more of them it takes.
    """
    return get("powersgd", rank=rank, ridge=ridge), "residual"
