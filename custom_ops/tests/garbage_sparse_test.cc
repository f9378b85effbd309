// Sums of sparse vectors, given random bits for indices, counts and values. Nothing outside is read
// or written. The result is an error that names the first faulty tensor, or the sums.
#include "garbage.h"
#include "kernels/sparse/gather.h"

namespace grace {

// Sparse vectors of some workers for some tensors, with random bits in some places.
class Sparse {
 public:
  Sparse(const std::vector<int64_t>& lengths, int64_t workers, uint32_t seed)
      : lengths_(lengths), workers_(workers), random_(seed), values_(0), indices_(0), counts_(0) {
    for (const int64_t n : lengths) ks_.push_back(CeilDiv(n, 4));
    for (const int64_t k : ks_) row_ += k;
    values_ = Garbage<float>(workers * row_, seed);
    indices_ = Guarded<int32_t>(workers * row_, seed % 4);
    counts_ = Garbage<int32_t>(workers * Tensors(), seed + 1);
    for (int64_t w = 0, at = 0; w < workers; ++w) {
      for (int64_t i = 0; i < Tensors(); ++i) {
        for (int64_t j = 0; j < ks_[i]; ++j) {
          const int64_t index = 4 * j + int64_t(random_() % 4);
          indices_[at + j] = int32_t(std::min(index, lengths[i] - ks_[i] + j));
        }
        if (ks_[i] && random_() % 4 == 0) Spoil(indices_.data() + at, ks_[i], lengths[i]);
        // Half of the counts are valid. Random bits are mostly negative or far too large.
        if (random_() % 2) counts_[w * Tensors() + i] = int32_t(random_() % (ks_[i] + 1));
        at += ks_[i];
      }
    }
  }

  void Check(bool counted, float factor) const {
    std::string error;
    std::vector<std::vector<float>> wanted;
    for (int64_t i = 0; i < Tensors(); ++i) wanted.push_back(Wanted(i, counted, factor, &error));
    OnEveryIsa([&](const Executor& executor) {
      Outputs outputs(lengths_);
      const Entries entries{values_.data(), indices_.data(), counted ? counts_.data() : nullptr,
                            workers_, ks_};
      bool finite = false;
      const std::string fault = ScatterList(executor, outputs.targets, entries, factor, &finite);
      EXPECT(fault == error && outputs.Intact(), "%s, not %s", fault.c_str(), error.c_str());
      if (error.empty()) {
        EXPECT(outputs.Are(wanted) && finite == Finite(wanted), "%ld tensors", long(Tensors()));
      }
    });
  }

  // Of the first worker, as the next stage of this worker's own payload.
  void CheckRefine() const {
    std::string error;
    for (int64_t i = 0, at = 0; i < Tensors(); at += ks_[i++]) {
      if (error.empty()) error = Fault(indices_.data() + at, ks_[i], i);
    }
    OnEveryIsa([&](const Executor& executor) {
      Outputs residual_out(lengths_);
      const std::string fault = RefineList(executor, residual_out.targets, indices_.data(),
                                           values_.data(), values_.data(), ks_);
      EXPECT(fault == error && residual_out.Intact(), "%s, not %s", fault.c_str(), error.c_str());
    });
  }

  // Each tensor alone, with the entries of the first worker.
  void CheckOne() const {
    for (int64_t i = 0, at = 0; i < Tensors(); at += ks_[i++]) {
      const int32_t* own = indices_.data() + at;
      const int64_t n = lengths_[i], k = ks_[i];
      const bool inside = std::all_of(own, own + k, [n](int32_t j) { return j >= 0 && j < n; });
      OnEveryIsa([&](const Executor& executor) {
        Guarded<float> taken(k);
        const Guarded<float> x = Garbage<float>(n, 9);
        EXPECT(Gather(executor, x.data(), n, own, k, taken.data()) == inside && taken.Intact(),
               "%ld of %ld", long(k), long(n));
      });
    }
  }

 private:
  int64_t Tensors() const { return int64_t(lengths_.size()); }

  void Spoil(int32_t* own, int64_t k, int64_t n) {
    const int64_t j = random_() % k;
    switch (random_() % 4) {
      case 0:
        own[j] = int32_t(random_());
        break;
      case 1:
        own[k - 1] = int32_t(n);
        break;
      case 2:
        own[j] = own[0];
        break;
      default:
        std::swap(own[j], own[0]);
    }
  }

  std::string Fault(const int32_t* own, int64_t count, int64_t i) const {
    bool ascending = true;
    for (int64_t j = 0; j < count; ++j) {
      if (own[j] < 0 || own[j] >= lengths_[i]) {
        return "Index " + std::to_string(own[j]) + " is outside tensor " + std::to_string(i) +
               " of the list, which has " + std::to_string(lengths_[i]) + " elements.";
      }
      ascending &= j == 0 || own[j - 1] < own[j];
    }
    return ascending ? ""
                     : "A worker's indices into tensor " + std::to_string(i) +
                           " of the list do not ascend strictly.";
  }

  // The totals of tensor i, or what is wrong with it if nothing was yet.
  std::vector<float> Wanted(int64_t i, bool counted, float factor, std::string* error) const {
    std::vector<float> total(lengths_[i], 0.0f);
    int64_t at = 0;
    for (int64_t j = 0; j < i; ++j) at += ks_[j];
    for (int64_t w = 0; w < workers_ && error->empty(); ++w) {
      const int64_t count = counts_.data()[w * Tensors() + i];
      const int64_t used = counted ? std::clamp<int64_t>(count, 0, ks_[i]) : ks_[i];
      const int32_t* own = indices_.data() + w * row_ + at;
      *error = Fault(own, used, i);
      for (int64_t j = 0; error->empty() && j < used; ++j) {
        float& sum = total[own[j]];
        sum = Flush(sum + Flush(values_.data()[w * row_ + at + j]));
      }
    }
    for (float& x : total) x = SignedFlush(x * factor);
    return total;
  }

  const std::vector<int64_t> lengths_;
  const int64_t workers_;
  std::mt19937 random_;
  std::vector<int64_t> ks_;
  int64_t row_ = 0;
  Guarded<float> values_;
  Guarded<int32_t> indices_, counts_;
};

void TestSparse() {
  for (const auto& lengths : kLists) {
    for (uint32_t seed = 0; seed < 12; ++seed) {
      const Sparse sparse(lengths, seed % 4, seed);
      sparse.Check(false, 0.3f);
      sparse.Check(true, 0.3f);
      if (seed % 4) sparse.CheckRefine();
      if (seed % 4 == 1) sparse.CheckOne();
    }
  }
}

// Indices that are nothing but random bits.
void TestAnyIndices() {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const Guarded<int32_t> indices = Garbage<int32_t>(30, seed), counts = Garbage<int32_t>(6, seed);
    const Guarded<float> values = Garbage<float>(30, seed);
    OnEveryIsa([&](const Executor& executor) {
      Outputs outputs({100, 0, 7});
      const Entries all{values.data(), indices.data(), nullptr, 2, {10, 0, 5}};
      bool finite;
      EXPECT(!ScatterList(executor, outputs.targets, all, 1.0f, &finite).empty(), "%d", int(seed));
      const Entries some{values.data(), indices.data(), counts.data(), 2, {10, 0, 5}};
      ScatterList(executor, outputs.targets, some, 1.0f, &finite);
      EXPECT(outputs.Intact(), "%d", int(seed));
    });
  }
}

}  // namespace grace

int main() {
  grace::TestSparse();
  grace::TestAnyIndices();
  return grace::Finish("sparse garbage");
}
