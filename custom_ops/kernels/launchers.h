// The functions of libgrace_cuda.so, the library of the kernels for GPUs: one for each list kernel,
// with the arguments and the results of the function that the .h of its .cu declares. Nothing in it
// names TensorFlow.
//
// All pointers but `list`, `sources`, `targets`, `key`, `keys`, the arrays of lengths and those named
// below are the device's, also those within a list. The results are the same bits as those of the
// functions of the .cc files, but for what follows from a NaN's sign and bits: a GPU's arithmetic
// has one NaN, 0x7fffffff. `finite` gets what these return. With a workspace of null a launcher
// starts nothing and sets *bytes to the size that the workspace must have; otherwise it starts its
// kernels on the stream, and returns 0 or the number of a CUDA error.
#pragma once

#include <cstddef>

#include "alternating.h"
#include "byte_codes.h"
#include "cast.h"
#include "classes.h"
#include "finite.h"
#include "index_sets.h"
#include "low_rank.h"
#include "mix.h"
#include "momentum.h"
#include "momentum_signs.h"
#include "narrow.h"
#include "orthonormal.h"
#include "quantiles.h"
#include "quantize_list.h"
#include "random_k.h"
#include "sampled_k.h"
#include "scaled_signs.h"
#include "scatter_list.h"
#include "signs.h"
#include "top_k.h"
#include "trits.h"
#include "two_means.h"

extern "C" {

// What a CUDA error is called.
const char* grace_cuda_error(int error);
// The compiler's version and the architectures that the library has code for.
const char* grace_cuda_build();
// The versions of CUDA that the driver serves, 0 where there is none, and that the library was built
// with, as 1000 * major + 10 * minor. Returns 0, or the number of a CUDA error where there is no GPU
// or the driver is too old. The call uses no memory of a GPU.
int grace_cuda_versions(int* driver, int* runtime);
// How many kernels were started so far.
int64_t grace_cuda_launches();
// Copies bytes within the device's memory.
int grace_cuda_copy(const void* from, int64_t size, void* to, void* stream);

// alternating.h
int grace_cuda_alternate_list(const grace::Source* sources, int64_t count, float multiplier,
                              const grace::MatrixSize* sizes, const float* left,
                              const float* right, float* p, float* q, float* dense, bool* finite,
                              void* workspace, size_t* bytes, void* stream);
int grace_cuda_expand_sides_list(const grace::Target* targets, int64_t count,
                                 const grace::MatrixSize* sizes, grace::Factors bases,
                                 const float* rest, const float* q, const float* dense,
                                 float factor, bool* finite, void* workspace, size_t* bytes,
                                 void* stream);

// byte_codes.h
int grace_cuda_decode_powers(const grace::Target* list, int64_t count, grace::ByteRows rows,
                             float factor, bool* finite, void* workspace, size_t* bytes,
                             void* stream);
int grace_cuda_decode_tree(const grace::Target* list, int64_t count, grace::ByteRows rows,
                           int64_t block, float factor, bool* finite, void* workspace,
                           size_t* bytes, void* stream);
int grace_cuda_encode_powers(const grace::Source* list, int64_t count, float multiplier,
                             const grace::PhiloxKey* keys, uint32_t* words, bool* finite,
                             void* workspace, size_t* bytes, void* stream);
int grace_cuda_encode_tree(const grace::Source* list, int64_t count, float multiplier,
                           int64_t block, uint32_t* words, float* scales, bool* finite,
                           void* workspace, size_t* bytes, void* stream);

// cast.h
int grace_cuda_cast_list(const grace::Source* list, int64_t count, float multiplier,
                         grace::Half type, uint16_t* halves, bool* finite, void* workspace,
                         size_t* bytes, void* stream);
int grace_cuda_uncast_list(const grace::Target* list, int64_t count, grace::Half type,
                           const uint16_t* halves, float factor, bool* finite, void* workspace,
                           size_t* bytes, void* stream);

// classes.h
int grace_cuda_decode_classes(const grace::Target* targets, int64_t count, grace::ErrorBound bound,
                              const grace::Room* rooms, const grace::ClassParts* parts,
                              int64_t workers, float factor, bool* finite, void* workspace,
                              size_t* bytes, void* stream);
int grace_cuda_encode_classes(const grace::Source* sources, int64_t count, float multiplier,
                              grace::ErrorBound bound, const grace::Room* rooms, uint64_t step,
                              const grace::ClassParts* parts, bool* finite, void* workspace,
                              size_t* bytes, void* stream);

// finite.h. nan_unless makes all elements of the list NaN where *finite, on the device, is false.
int grace_cuda_all_finite(const grace::Floats* list, int64_t count, bool* finite, void* workspace,
                          size_t* bytes, void* stream);
int grace_cuda_nan_unless_list(const grace::Target* list, int64_t count, const bool* finite,
                               void* workspace, size_t* bytes, void* stream);

// index_sets.h. `layouts` are those of `each`; `fault` is as that of scatter_list.h.
int grace_cuda_pack_index_list(const grace::IndexLayout* layouts, int64_t count,
                               const int32_t* indices, const int32_t* counts, uint32_t* words,
                               int32_t* fault, void* workspace, size_t* bytes, void* stream);
int grace_cuda_scatter_set_list(const grace::Target* targets, const grace::IndexLayout* layouts,
                                int64_t count, const grace::SetEntries* entries, float factor,
                                bool* finite, int32_t* fault, void* workspace, size_t* bytes,
                                void* stream);
int grace_cuda_unpack_index_list(const grace::IndexLayout* layouts, int64_t count,
                                 const uint32_t* words, int64_t workers, int32_t* indices,
                                 void* workspace, size_t* bytes, void* stream);

// low_rank.h
int grace_cuda_expand_list(const grace::Target* targets, int64_t count,
                           const grace::MatrixSize* sizes, const float* p, const float* q,
                           const float* dense, float factor, bool* finite, void* workspace,
                           size_t* bytes, void* stream);
int grace_cuda_project_list(const grace::Source* sources, int64_t count, float multiplier,
                            const grace::MatrixSize* sizes, const float* const* qs, float* p,
                            float* dense, bool* finite, void* workspace, size_t* bytes,
                            void* stream);
int grace_cuda_reproject_list(const grace::Source* sources, int64_t count, float multiplier,
                              const grace::MatrixSize* sizes, const float* p, float* q,
                              grace::Factors others, void* workspace, size_t* bytes, void* stream);

// mix.h
int grace_cuda_mix_list(const grace::Mixed* list, int64_t count, float a, float b, void* workspace,
                        size_t* bytes, void* stream);

// momentum.h. `scales` has one float a tensor.
int grace_cuda_clip_scales(const grace::Source* sources, int64_t count, float multiplier,
                           float limit, float* scales, void* workspace, size_t* bytes,
                           void* stream);

// momentum_signs.h
int grace_cuda_momentum_sign_list(const grace::Source* sources, int64_t count, float multiplier,
                                  const grace::Momentum* momentum, uint32_t* const* words,
                                  bool* finite, void* workspace, size_t* bytes, void* stream);

// narrow.h
int grace_cuda_from_halves_list(const grace::Widened* list, int64_t count, void* workspace,
                                size_t* bytes, void* stream);
int grace_cuda_to_halves_list(const grace::Narrowed* list, int64_t count,
                              const grace::PhiloxKey* key, void* workspace, size_t* bytes,
                              void* stream);

// orthonormal.h
int grace_cuda_bases_list(const grace::MatrixSize* sizes, int64_t count,
                          const float* const* factors, float* left, float* right, void* workspace,
                          size_t* bytes, void* stream);
int grace_cuda_orthonormal_list(const grace::MatrixSize* sizes, int64_t count, const float* p,
                                float* basis, void* workspace, size_t* bytes, void* stream);
int grace_cuda_remove_list(const grace::MatrixSize* sizes, int64_t count, const float* w,
                           const float* basis, float* rest, void* workspace, size_t* bytes,
                           void* stream);
int grace_cuda_turn_list(const grace::MatrixSize* sizes, int64_t count, const float* p,
                         const float* q, const float* left, const float* right, bool p_first,
                         float* const* factors, void* workspace, size_t* bytes, void* stream);
int grace_cuda_unit_columns_list(const grace::MatrixSize* sizes, int64_t count, const float* q,
                                 float* const* units, void* workspace, size_t* bytes,
                                 void* stream);

// quantiles.h
int grace_cuda_decode_quantiles(const grace::Target* targets, int64_t count,
                                const grace::QuantileRows* rows, int32_t buckets, float factor,
                                bool* finite, void* workspace, size_t* bytes, void* stream);
int grace_cuda_encode_quantiles(const grace::Source* sources, int64_t count, float multiplier,
                                grace::Quantiles quantiles, uint32_t* words, float* means,
                                bool* finite, void* workspace, size_t* bytes, void* stream);

// quantize_list.h. `key` is the host's.
int grace_cuda_dequantize_list(grace::Rows rows, const grace::Decoded* list, int64_t count,
                               grace::Quantization quantization, float factor, bool* finite,
                               void* workspace, size_t* bytes, void* stream);
int grace_cuda_quantize_list(const grace::Encoded* list, int64_t count, grace::ListCode code,
                             const grace::PhiloxKey* key, bool* finite, void* workspace,
                             size_t* bytes, void* stream);

// random_k.h. `key`, `keys` and `scales`, null where there are none, are the host's.
int grace_cuda_random_indices(const grace::PhiloxKey* key, int64_t n, int64_t k, int32_t* indices,
                              void* workspace, size_t* bytes, void* stream);
int grace_cuda_random_k_list(const grace::Source* list, int64_t count, float multiplier,
                             const grace::PhiloxKey* keys, const int64_t* ks, float* values,
                             bool* finite, void* workspace, size_t* bytes, void* stream);
int grace_cuda_scatter_random_list(const grace::Target* list, int64_t count,
                                   const grace::PhiloxKey* keys, const int64_t* ks,
                                   const float* scales, const float* values, float factor,
                                   bool* finite, void* workspace, size_t* bytes, void* stream);

// sampled_k.h. `states`, null where there are none, and `samplings` are the host's; the arguments from
// `momentum` to `limit` are those of Correction.
int grace_cuda_sampled_k_list(const grace::Source* list, int64_t count, float multiplier,
                              const grace::MomentumState* states, float momentum, bool nesterov,
                              bool masked, float limit, const grace::Sampling* samplings,
                              const int64_t* ks, float* values, int32_t* indices, int32_t* counts,
                              bool* finite, void* workspace, size_t* bytes, void* stream);

// scaled_signs.h
int grace_cuda_scaled_sign_list(const grace::Source* sources, int64_t count, float multiplier,
                                const grace::Cells* cells, const grace::ScaledSigns* parts,
                                bool* finite, void* workspace, size_t* bytes, void* stream);
int grace_cuda_sum_scaled_sign_list(const grace::ScaledRows* rows, const grace::Cells* cells,
                                    const grace::Target* targets, int64_t count, float factor,
                                    bool* finite, void* workspace, size_t* bytes, void* stream);

// scatter_list.h. fault[3] gets what the sentence says: 0 where nothing is wrong, 1 for an index
// outside its tensor, 2 for indices that do not ascend; the tensor; the index. With a fault `finite`
// is false. `indices`, `values` and `counts` are those of Entries.
int grace_cuda_index_fault(const int64_t* lengths, int64_t count, const int32_t* indices,
                           const int32_t* counts, int64_t workers, const int64_t* ks,
                           int32_t* fault, void* workspace, size_t* bytes, void* stream);
int grace_cuda_refine_list(const grace::Target* list, int64_t count, const int32_t* indices,
                           const float* values, const float* decoded, const int64_t* ks,
                           int32_t* fault, void* workspace, size_t* bytes, void* stream);
int grace_cuda_scatter_list(const grace::Target* list, int64_t count, const float* values,
                            const int32_t* indices, const int32_t* counts, int64_t workers,
                            const int64_t* ks, float factor, bool* finite, int32_t* fault,
                            void* workspace, size_t* bytes, void* stream);

// signs.h
int grace_cuda_sign_list(const grace::Signed* list, int64_t count, bool* finite, void* workspace,
                         size_t* bytes, void* stream);
int grace_cuda_vote_list(const uint32_t* words, int64_t workers, int64_t stride,
                         const grace::Voted* list, int64_t count, float factor, void* workspace,
                         size_t* bytes, void* stream);

// top_k.h. `values` and `indices` are those of Selection.
int grace_cuda_threshold_list(const grace::Source* list, int64_t count, float multiplier,
                              float threshold, const int64_t* ks, float* values, int32_t* indices,
                              int32_t* counts, bool* finite, void* workspace, size_t* bytes,
                              void* stream);
int grace_cuda_top_k_list(const grace::Source* list, int64_t count, float multiplier,
                          const int64_t* ks, float* values, int32_t* indices, bool* finite,
                          void* workspace, size_t* bytes, void* stream);

// trits.h. What elements are clipped to and what digits are worth is on the device: own[i] and
// scales[i] stand for list[i].own and list[i].scale.
int grace_cuda_ternary_decode(grace::TernaryRows rows, const grace::TernaryDecoded* list,
                              int64_t count, int32_t bits, float factor, bool* finite,
                              void* workspace, size_t* bytes, void* stream);
int grace_cuda_ternary_encode(const grace::Ternary* list, int64_t count, const float* own,
                              const float* scales, int32_t bits, const grace::PhiloxKey* key,
                              void* workspace, size_t* bytes, void* stream);
int grace_cuda_ternary_scales(const grace::Ternary* list, int64_t count, float clip, float* scales,
                              bool* finite, void* workspace, size_t* bytes, void* stream);

// two_means.h. The arguments from `means` to `counts` are the members of TwoMeans.
int grace_cuda_expand_means(const float* means, const uint32_t* signs, int64_t workers,
                            const int64_t* ks, int64_t count, float* values, void* workspace,
                            size_t* bytes, void* stream);
int grace_cuda_two_means_list(const grace::Source* sources, int64_t count, float multiplier,
                              const int64_t* ks, float* means, uint32_t* signs, int32_t* indices,
                              int32_t* counts, bool* finite, void* workspace, size_t* bytes,
                              void* stream);

}  // extern "C"
