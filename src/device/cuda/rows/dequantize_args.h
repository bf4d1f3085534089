// What the dequantization kernel shares with the host code that launches it.
#pragma once

#include <cuda_fp16.h>

#include "device/cuda/seal/encode_args.h"
#include "format/trellis_code.h"

namespace kvant::cuda {

// How the values of a page follow from its codes and parameters.
struct PageDecoding {
  Encoding encoding;
  PageFormat stored;
  CodeLayout layout;
  int page_bytes;            // in GPU memory
  int group;                 // channel_grid: tokens, token_grid: channels that share a scale
  float levels[kMaxLevels];  // lloyd_max: for values with a variance of 1 / d
  TrellisCode trellis;
  const __half* codebooks;  // for vectors
  std::int64_t codebook_stride;
};

// The transform of a side's rows before they are stored: the orthonormal Walsh-Hadamard matrix if `hadamard`,
// then channels times factors, [n_kv_heads][D], or null.
struct RowBasis {
  int hadamard;
  const float* factors;
};

struct DequantizeArgs {
  const std::int32_t* seqs;  // null: 0, 1, ...
  // For each chosen sequence, or null: its first page, its number of pages, and its first row.
  const std::int32_t *first_pages, *page_counts, *row_begins;
  int first_page, first_head;
  const std::int32_t *sealed_pages, *tail_tokens;
  SealedSource sealed;
  PageSource tail, protected_pages;
  int sink;
  const uint4* masks;
  std::int64_t mask_seq_stride, mask_head_stride;
  void* rows[2];  // of keys and of values; null: not requested
  int channels;   // channels that rows have: a multiple of 8
  NumberType type;
  RowBasis bases[2];
  std::int64_t seq_stride, token_stride, head_stride;
  // Whether rows of a side are BF16 exactly as they are decoded.
  __host__ __device__ bool are_as_decoded(int side) const {
    return type == NumberType::bf16 && bases[side].hadamard == 0 && bases[side].factors == nullptr;
  }
  std::uint8_t decoding_of_head[kMaxKvHeads];
  PageDecoding decodings[kMaxHeadGroups][2];  // [..][side]
};

}  // namespace kvant::cuda
