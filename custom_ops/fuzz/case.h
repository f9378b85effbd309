// One case of the fuzzer: random shapes, random bits, and a decoder run on every instruction set.
//
// The seed alone decides a case. The inputs lie in buffers of exactly their size, between guards. A
// decoder is right where it reads and writes nothing outside, and where its results have the same
// bits on all instruction sets. The outputs of each run begin as different garbage, so an element
// that is not written differs.
#pragma once

#include <vector>

#include "kernels/base/philox.h"
#include "tests/corners.h"
#include "tests/garbage.h"

namespace grace {

class Case {
 public:
  explicit Case(uint32_t seed) : random_(seed) {}

  // From 0 to n - 1, and whether it is one time in n.
  int64_t Below(int64_t n) { return random_() % n; }
  bool OneIn(int64_t n) { return Below(n) == 0; }

  // Few elements mostly, since they are decoded quickly; sometimes more than a chunk, and rarely
  // more than a piece, which several threads share.
  int64_t Length(int64_t least = 0);
  std::vector<int64_t> Lengths(int64_t least = 0);
  int64_t Workers() { return 1 + Below(4); }
  float Factor() { return OneIn(8) ? Float() : OneIn(3) ? 1.0f : 0.3f; }

  // Random bits; bits that stand out; zeros but for a few bits.
  Guarded<uint32_t> Words(int64_t n);
  // Any bits; numbers that stand out; a gradient; one in which a few bits are flipped.
  Guarded<float> Floats(int64_t n);
  // Any bits, or numbers around those from 0 to `most`.
  Guarded<int32_t> Counts(int64_t n, int64_t most);
  // Rows of indices into tensors of these lengths, with ks[i] for each: ascending and inside, and
  // then some of them spoilt.
  Guarded<int32_t> Indices(int64_t rows, const std::vector<int64_t>& lengths,
                           const std::vector<int64_t>& ks);
  PhiloxKey Key() { return {Word(), Word(), Word(), Word()}; }
  // Flips a few bits.
  template <class T>
  void Flip(Guarded<T>& buffer, int64_t n) {
    auto* bytes = reinterpret_cast<unsigned char*>(buffer.data());
    for (int64_t i = n ? 1 + Below(4) : 0; i > 0; --i) {
      bytes[Below(n * sizeof(T))] ^= static_cast<unsigned char>(1 << Below(8));
    }
  }

  // Runs a decode, which takes an Executor and returns its Results, on every instruction set.
  template <class Body>
  void Run(const Body& body) {
    static const std::vector<const char*> isas = Isas();
    Results first;
    for (size_t i = 0; i < isas.size(); ++i) {
      SetIsa(isas[i]);
      const Results results = On(body);
      const char* fault = results.Fault(i ? first : results);
      EXPECT(!fault, "%s", fault);
      if (i == 0) first = results;
      ++decodes_;
    }
    SetIsa("auto");
  }
  int64_t decodes() const { return decodes_; }

 private:
  static std::vector<const char*> Isas();
  uint32_t Word();
  float Float() { return FloatOf(Word()); }
  template <class Body>
  Results On(const Body& body) {
    if (large_) return body(Threads(3));
    return decodes_ % 2 ? body(Backwards()) : body(Serial());
  }

  std::mt19937 random_;
  bool large_ = false;  // whether there is a tensor that threads share
  int64_t decodes_ = 0;
};

// The totals of a decoder that says whether all of them are finite.
Results Totals(bool finite, const Outputs& outputs);

// A decoder and what makes a case of it.
struct Decoder {
  const char* name;
  void (*fuzz)(Case*);
};
std::vector<Decoder> CodeDecoders();
std::vector<Decoder> SparseDecoders();
std::vector<Decoder> MatrixDecoders();

}  // namespace grace
