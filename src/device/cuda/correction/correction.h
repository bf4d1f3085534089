// KVLinC's linear correction on the GPU (docs/reference/methods.md): what its kernels share with the host
// code that launches them.
#pragma once

#include <cuda_runtime.h>

#include "device/cuda/common/gpu.h"
#include "device/cuda/prompt/prompt_args.h"
#include "device/cuda/seal/encode_args.h"
#include "kvant/kvant.h"

namespace kvant::cuda {

inline constexpr int kFeatures = 256;  // size of phi: two softmaxes of 128
inline constexpr int kHalfFeatures = kFeatures / 2;

// Whether a CTA can keep the maps of such a head in registers.
constexpr bool can_be_corrected(int head_dim) {
  return head_dim <= 128;
}

// S [kFeatures][d], then z [kFeatures], for each sequence and KV head.
struct CorrectionStates {
  float* states;
  std::int64_t seq_stride, head_stride;
  const std::int32_t* state_of_seq;

  __host__ __device__ float* at(int seq, int head) const {
    return states + (state_of_seq == nullptr ? seq : state_of_seq[seq]) * seq_stride + head * head_stride;
  }
};

inline CorrectionStates states_of(const kvant_correction& correction) {
  return {correction.states, correction.state_seq_stride, correction.state_head_stride,
          correction.state_of_seq};
}

struct CorrectionArgs {
  int n_seqs, n_kv_heads, group;
  const float* query_maps;
  CorrectionStates states;
  const void* q;
  NumberType q_type;
  std::int64_t q_seq_stride, q_head_stride;
  float* features;     // [n_seqs][n_kv_heads * group][kFeatures]: phi(q)
  float* numerator;    // [n_seqs][n_kv_heads * group][d]: phi(q) S
  float* denominator;  // [n_seqs][n_kv_heads * group]: phi(q) z
};

// Launches the computation of the numerators and denominators that the decode kernel adds.
cudaError_t attend_to_states(const CorrectionArgs& args, int head_dim, const Gpu& gpu, cudaStream_t stream);

// Describes a prompt's rows that are corrected after prefill attention, each with a state of its own.
// queries.n_seqs is the number of rows. Their numerators and denominators are not used, and `features` has
// space for rows_at_once of them.
struct PromptCorrection {
  // Limits features to 20 MB.
  static constexpr int rows_at_once(int n_heads) { return n_heads < 20480 ? 20480 / n_heads : 1; }
  CorrectionArgs queries;
  const PromptRowSums* sums;  // [rows][n_heads], relative to the largest score
  void* out;
  NumberType out_type;
  std::int64_t out_token_stride, out_head_stride;
  float* lse;  // or null
  std::int64_t lse_token_stride, lse_head_stride;
  int absolute;
};

cudaError_t correct_prompt(const PromptCorrection& correction, int head_dim, const Gpu& gpu,
                           cudaStream_t stream);

struct StateUpdateArgs {
  SealArgs seal;
  const float* key_maps;
  CorrectionStates states;
  // 0: a sequence's pages are added to its state. Otherwise the sums after its page n, counted from 1, are
  // written at n times this many numbers after the state.
  std::int64_t page_stride;
};

// Launches the addition of the pages in args, which were just sealed from the tail, to their sequences'
// states.
cudaError_t add_sealed_to_states(const StateUpdateArgs& args, int head_dim, const Gpu& gpu,
                                 cudaStream_t stream);

}  // namespace kvant::cuda
