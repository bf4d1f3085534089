// Protected tokens that prompt attention in 8-bit integers leaves out of the tiles of their pages, and
// attends to in half precision ("kept rows": VQuant, section 5.2).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/cuda/decode/decode_args.h"

namespace kvant::cuda {

struct KeptRows {
  const uint4* masks;  // of pages' protected tokens behind the sink, or null: the sink's alone
  std::int64_t mask_seq_stride, mask_head_stride;
  int sink;
  PageSource protected_pages;
  // [n_kv_heads][page_slots + n_seqs]: of the pages of each sequence in turn, and of its end, how many kept
  // rows of this and the sequences before lie before it.
  std::int32_t* before;
  int n_before;  // of a head
  // [n_kv_heads][slots], HalfTile: of each sequence in turn, as tiles of rows are (first_tile). Keys lose
  // their centre, values theirs and their channels' scales, as INT8 tiles do.
  unsigned char* tiles;
  int slots;
};

// In place of it where there are none.
struct NothingKept {};

}  // namespace kvant::cuda
