// Kept rows: protected tokens that prefill attention in 8-bit integers omits from the tiles of their pages,
// and attends to in half precision (VQuant, section 5.2).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/cuda/common/arguments.h"

namespace kvant::cuda {

struct KeptRows {
  const uint4* masks;  // pages' protected tokens after the sink; null: only the sink
  std::int64_t mask_seq_stride, mask_head_stride;
  int sink;
  PageSource protected_pages;
  // [n_kv_heads][page_slots + n_seqs]: the number of kept rows of this and earlier sequences that precede
  // each page of each sequence, and the sequence's end.
  std::int32_t* before;
  int n_before;  // per head
  // [n_kv_heads][slots], HalfTile: the sequences in turn, like tiles of rows (first_tile). As in INT8 tiles,
  // the centre is subtracted from keys and values, and values are divided by their channels' scales.
  unsigned char* tiles;
  int slots;
};

// Replaces KeptRows if there are none.
struct NothingKept {};

}  // namespace kvant::cuda
