// What the encoding kernels share with the code that launches them.
#pragma once

#include "attention/cuda/decode_args.h"

namespace kvant::cuda {

// How the values of a page become codes and parameters: the families of src/format.
enum class Encoding : std::uint8_t { channel_grid, token_grid, progressive, lloyd_max, trellis, vectors };

struct PageEncoding {
  Encoding encoding;
  CodeLayout layout;
  int page_bytes;        // in GPU memory
  float levels[256];     // lloyd_max: of values with a variance of 1 / d; trellis: of the states
  float boundaries[15];  // between those of values with a variance of 1
  const void* codebooks;
  std::int64_t codebook_stride;
};

struct SealArgs {
  int n_seqs;
  HeadList heads;
  PageSource sealed, tail;
  const std::int32_t *tail_page, *sealed_page;
  int sink;
  const uint4* masks;
  std::int64_t mask_seq_stride, mask_head_stride;
  PageEncoding sides[2];
};

struct AppendArgs {
  int n_kv_heads;
  PageSource tail;
  const std::int32_t *seq, *tail_token;
  const void* rows[2];
  std::int64_t row_stride[2], head_stride[2];
  const float* factors[2];
  int hadamard[2];
};

}  // namespace kvant::cuda
