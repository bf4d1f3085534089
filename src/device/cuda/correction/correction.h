// Declares the arguments of KVLinC's linear correction on the GPU (docs/reference/methods.md) and the
// functions that launch its kernels. Sealing adds pages to states. Attention adds the products of queries and
// states to its sums.
#pragma once

#include <cuda_runtime.h>

#include "device/cuda/common/gpu.h"
#include "device/cuda/prompt/prompt_args.h"
#include "device/cuda/seal/encode_args.h"
#include "kvant/kvant.h"

namespace kvant::cuda {

inline constexpr int kFeatures = 256;  // numbers of phi, which are two softmaxes of 128 numbers
inline constexpr int kHalfFeatures = kFeatures / 2;

// Returns whether the registers of a CTA have room for the maps of a head of this size.
constexpr bool can_be_corrected(int head_dim) {
  return head_dim <= 128;
}

// Locates the states. For each sequence and KV head, S [kFeatures][d] is followed by z [kFeatures].
struct CorrectionStates {
  float* states;
  std::int64_t seq_stride, head_stride;
  const std::int32_t* state_of_seq;

  __host__ __device__ float* at(int seq, int head) const {
    return states + (state_of_seq == nullptr ? seq : state_of_seq[seq]) * seq_stride + head * head_stride;
  }
};

// Returns the states of a caller's correction.
inline CorrectionStates states_of(const kvant_correction& correction) {
  return {correction.states, correction.state_seq_stride, correction.state_head_stride,
          correction.state_of_seq};
}

// Describes queries that are multiplied with states. Shapes in brackets name the slowest dimension first.
struct CorrectionArgs {
  int n_seqs, n_kv_heads, group;
  const float* query_maps;
  CorrectionStates states;
  const void* q;
  NumberType q_type;
  std::int64_t q_seq_stride, q_head_stride;
  float* features;     // [n_seqs][n_kv_heads * group][kFeatures], phi(q)
  float* numerator;    // [n_seqs][n_kv_heads * group][d], phi(q) S
  float* denominator;  // [n_seqs][n_kv_heads * group], phi(q) z
};

// Launches the kernels that compute numerators and denominators, which the decode kernel adds to its sums.
cudaError_t attend_to_states(const CorrectionArgs& args, int head_dim, const Gpu& gpu, cudaStream_t stream);

// Describes the rows of a prompt that are corrected after prefill attention. Each row counts as a sequence,
// and several rows may name one state (CorrectionStates::state_of_seq). queries.n_seqs is the number of rows.
// The numerator and denominator of `queries` are not used, and `features` has space for rows_at_once() rows.
struct PromptCorrection {
  // Returns how many rows are corrected at a time, which limits features to 20 MB.
  static constexpr int rows_at_once(int n_heads) { return n_heads < 20480 ? 20480 / n_heads : 1; }
  CorrectionArgs queries;
  const PromptRowSums* sums;  // [rows][n_heads], relative to the largest score
  void* out;
  NumberType out_type;
  std::int64_t out_token_stride, out_head_stride;
  float* lse;  // null if the caller needs no LSEs
  std::int64_t lse_token_stride, lse_head_stride;
  int absolute;
};

// Launches the kernels that correct a prompt's rows.
cudaError_t correct_prompt(const PromptCorrection& correction, int head_dim, const Gpu& gpu,
                           cudaStream_t stream);

// Describes pages that are added to states.
struct StateUpdateArgs {
  int n_seqs;
  HeadList heads;
  SealedSource sealed;
  PageSource tail;
  DueArgs due;
  int sink;
  const uint4* masks;
  std::int64_t mask_seq_stride, mask_head_stride;
  PageFormat stored[2];  // formats of keys and values
  const float* key_maps;
  CorrectionStates states;
  // If page_stride is 0, a sequence's pages are added to its state. Otherwise the sums after page n of a
  // sequence, counted from 1, are written n * page_stride numbers after the state.
  std::int64_t page_stride;
};

// Launches the kernels that add newly sealed pages to the states of their sequences. The rows of the pages
// must still be in the tail.
cudaError_t add_sealed_to_states(const StateUpdateArgs& args, int head_dim, const Gpu& gpu,
                                 cudaStream_t stream);

}  // namespace kvant::cuda
