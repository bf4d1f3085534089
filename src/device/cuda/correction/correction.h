// KVLinC's linear correction on the GPU (docs/reference/methods.md): what its kernels share with the code
// that launches them.
#pragma once

#include <cuda_runtime.h>

#include "device/cuda/device/gpu.h"
#include "device/cuda/prompt/prompt_args.h"
#include "device/cuda/seal/encode_args.h"
#include "kvant/kvant.h"

namespace kvant::cuda {

inline constexpr int kFeatures = 256;  // of phi: two softmaxes of 128
inline constexpr int kHalfFeatures = kFeatures / 2;

// Heads whose maps a CTA can keep in registers.
constexpr bool can_be_corrected(int head_dim) {
  return head_dim <= 128;
}

// S [kFeatures][d], then z [kFeatures], of each sequence and KV head.
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

// Launches what fills the numerators and denominators that the decode kernel joins.
cudaError_t attend_to_states(const CorrectionArgs& args, int head_dim, const Gpu& gpu, cudaStream_t stream);

// A prompt's rows, each with a state of its own: what the kernel of prompts has left of them becomes
// corrected. queries.n_seqs: rows, their numerators and denominators are not used, and features has room for
// rows_at_once of them.
struct PromptCorrection {
  // 20 MB of features.
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
  // 0: a sequence's pages are added to its state. Or the sums after its nth page, from 1, are written n times
  // as many numbers behind it.
  std::int64_t page_stride;
};

// Launches what adds the pages that args name, just sealed from the tail, to the states of their sequences.
cudaError_t add_sealed_to_states(const StateUpdateArgs& args, int head_dim, const Gpu& gpu,
                                 cudaStream_t stream);

}  // namespace kvant::cuda
