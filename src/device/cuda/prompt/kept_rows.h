// Describes kept rows: protected tokens that prefill attention in 8-bit integers omits from the tiles of
// their pages. Queries attend to kept rows in half precision instead (VQuant, section 5.2).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/cuda/common/arguments.h"

namespace kvant::cuda {

struct KeptRows {
  // Masks mark pages' protected tokens after the sink. Null means that only the sink's tokens are kept.
  const uint4* masks;
  std::int64_t mask_seq_stride, mask_head_stride;
  int sink;
  PageSource protected_pages;
  // Holds the number of kept rows of this and earlier sequences before each page and before each sequence's
  // end, [n_kv_heads][page_slots + n_seqs].
  std::int32_t* before;
  int n_before;  // numbers of a head
  // Holds each head's HalfTiles in the order of sequences, like tiles of rows (first_tile). The shape is
  // [n_kv_heads][slots]. As in INT8 tiles, the centre is subtracted from keys and values, and values are
  // divided by their channels' scales.
  unsigned char* tiles;
  int slots;
};

// Takes the place of KeptRows in kernels without kept rows.
struct NothingKept {};

}  // namespace kvant::cuda
