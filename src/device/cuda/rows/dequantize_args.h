// Declares DequantizeArgs, which tells the dequantization kernel which pages to turn back into rows. Prefill
// kernels also find pages through DequantizeArgs.
#pragma once

#include <cuda_fp16.h>

#include "device/cuda/seal/encode_args.h"
#include "format/trellis_code.h"

namespace kvant::cuda {

// Describes how the codes and parameters of a page yield its values.
struct PageDecoding {
  Encoding encoding;
  PageFormat stored;
  CodeLayout layout;
  int page_bytes;  // bytes in GPU memory
  // `group` is the number of tokens (channel_grid) or channels (token_grid) that share a scale.
  int group;
  // Holds Lloyd-Max levels for values with a variance of 1 / d.
  float levels[kMaxLevels];
  TrellisCode trellis;
  // Only vector formats have codebooks; the pointer is null for other formats.
  const __half* codebooks;
  std::int64_t codebook_stride;
};

// Describes how a side's rows are transformed before they are stored. The orthonormal Walsh-Hadamard matrix
// comes first if `hadamard` is nonzero. Factors, [n_kv_heads][D] or null, then multiply the channels.
struct RowBasis {
  int hadamard;
  const float* factors;
};

// Says which pages of which sequences become rows, and where the rows are written.
struct DequantizeArgs {
  const std::int32_t* seqs;  // null for sequences 0, 1, ...
  // Holds the first page, the number of pages and the first row of each chosen sequence. If an array is null,
  // all sequences share one number.
  const std::int32_t *first_pages, *page_counts, *row_begins;
  int first_page, first_head;
  const std::int32_t *sealed_pages, *tail_tokens;
  SealedSource sealed;
  PageSource tail, protected_pages;
  int sink;
  const uint4* masks;
  std::int64_t mask_seq_stride, mask_head_stride;
  void* rows[2];  // destinations of the rows of keys and of values; null if the caller does not need them
  int channels;   // number of channels in a row, a multiple of 8
  NumberType type;
  RowBasis bases[2];
  std::int64_t seq_stride, token_stride, head_stride;
  // Returns whether the rows of a side are exactly the decoded values as BF16.
  __host__ __device__ bool are_as_decoded(int side) const {
    return type == NumberType::bf16 && bases[side].hadamard == 0 && bases[side].factors == nullptr;
  }
  std::uint8_t decoding_of_head[kMaxKvHeads];
  PageDecoding decodings[kMaxHeadGroups][2];  // [group of heads][side]
};

}  // namespace kvant::cuda
