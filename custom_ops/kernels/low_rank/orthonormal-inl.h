// The compiler vectorises these loops by itself. Vectors have `n` elements, a power of two.

// The sum of a * b, the upper half of the products added to the lower half until one is left.
static float Dot(const float* __restrict a, const float* __restrict b, int64_t n,
                 float* __restrict products) {
  if (n == 1) return a[0] * b[0];
  n /= 2;
  for (int64_t i = 0; i < n; ++i) products[i] = a[i] * b[i] + a[i + n] * b[i + n];
  while (n > 1) {
    n /= 2;
    float* __restrict upper = products + n;
    for (int64_t i = 0; i < n; ++i) products[i] += upper[i];
  }
  return products[0];
}

// Takes out of w what it has of `rank` vectors, one behind the other in `basis`.
static void Remove(const float* __restrict basis, int64_t rank, int64_t n, float* __restrict w,
                   float* __restrict share, float* __restrict products, float* __restrict cosines) {
  for (int64_t k = 0; k < rank; ++k) cosines[k] = Dot(basis + k * n, w, n, products);
  for (int64_t i = 0; i < n; ++i) share[i] = basis[i] * cosines[0];
  for (int64_t k = 1; k < rank; ++k) {
    const float* __restrict own = basis + k * n;
    const float cosine = cosines[k];
    for (int64_t i = 0; i < n; ++i) share[i] += own[i] * cosine;
  }
  for (int64_t i = 0; i < n; ++i) w[i] -= share[i];
}

// The squares of the rows' norms.
static void RowNorms(const float* __restrict basis, int64_t rank, int64_t n, int64_t rows,
                     float* __restrict norms) {
  for (int64_t i = 0; i < rows; ++i) norms[i] = basis[i] * basis[i];
  for (int64_t k = 1; k < rank; ++k) {
    const float* __restrict own = basis + k * n;
    for (int64_t i = 0; i < rows; ++i) norms[i] += own[i] * own[i];
  }
}

static void Divide(float divisor, int64_t n, const float* __restrict x, float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] / divisor;
}
