// Lays out a decode kernel's shared memory: tables, merge buffer, barriers, and rings of pages. The host
// calls these functions before a launch. More rings are preferred to longer rings, because each ring feeds
// other warps.
#pragma once

#include <algorithm>

#include "device/cuda/decode/decode_registry.h"
#include "device/cuda/decode/leave_segment.cuh"
#include "device/cuda/decode/page_copier.cuh"

namespace kvant::cuda {

// A ring has at least this many slots.
inline constexpr int kLeastStages = 2;

// Places the generic kernel's codebooks after the tables if enough shared memory is left for two pages.
// Tables and codebooks together take at most 96 KB. Returns the bytes of tables and codebooks.
inline int place_codebooks(const DecodeKernel& kernel, const Gpu& gpu, AnyPage* key, AnyPage* value) {
  constexpr int kRestBytes = 4096;  // bytes for barriers and alignment
  const int pages = 2 * std::max(kernel.key_bytes, kernel.value_bytes);
  const int max_bytes = std::min(98304, gpu.shared_bytes - kernel.merge_bytes - pages - kRestBytes);
  int bytes = kernel.table_bytes;
  for (AnyPage* page : {key, value}) {
    if (page->codebook_bytes == 0 || bytes + page->codebook_bytes > max_bytes) continue;
    page->table_at = bytes;
    bytes += page->codebook_bytes;
  }
  return bytes;
}

// Sets the offsets of the merge buffer, barriers and rings for `warps` consumer warps. If `for_all_warps`,
// buffers keep the size that the most warps need. Otherwise, the buffers have the size that `warps` warps
// need.
inline void place_parts(const DecodeKernel& kernel, bool for_all_warps, int table_bytes, int warps,
                        DecodeArgs* args) {
  const int all_warps = max_consumer_warps(kernel.head_dim);
  const int absent = for_all_warps ? 0 : all_warps - warps;
  const int absent_from_tables = for_all_warps ? 0 : kernel.max_warps - warps;
  const int merge_bytes_of_warp = (kernel.merge_bytes - static_cast<int>(sizeof(MergedSums))) / all_warps;
  args->merge_at = (table_bytes - absent_from_tables * kernel.warp_bytes + 127) / 128 * 128;
  args->barriers_at = args->merge_at + (kernel.merge_bytes - absent * merge_bytes_of_warp + 15) / 16 * 16;
  args->ring_at = (args->barriers_at + Rings::bytes(kMaxConsumerWarps, kMaxStages) + 127) / 128 * 128;
}

// Sets the members that DecodeArgs::page_bytes() reads.
inline void set_page_bytes(const DecodeKernel& kernel, DecodeArgs* args) {
  const UnlikeHeadsKernel& unlike = kernel.for_unlike_heads;
  args->bytes_of_bit = unlike.bytes_of_bit;
  args->key_bytes = unlike.bytes_of_bit == 0 ? kernel.key_bytes : unlike.bytes_without_codes;
  args->value_bytes = unlike.bytes_of_bit == 0 ? kernel.value_bytes : unlike.bytes_without_codes;
}

// Chooses the largest number of rings with kLeastStages slots each, and then the largest number of slots.
// Each ring belongs to one consumer warp or to several warps that share pages. `column_warps` warps share
// pages by columns. Returns the bytes of shared memory, or 0 if no ring fits.
inline int lay_out_shared(const DecodeKernel& kernel, const Gpu& gpu, int column_warps, DecodeArgs* args) {
  const int tile_bytes = 16 * kernel.head_dim * 2;
  const int table_bytes = place_codebooks(kernel, gpu, &args->key_page, &args->value_page);
  set_page_bytes(kernel, args);
  args->slot_bytes = std::max({tile_bytes, kernel.key_bytes, kernel.value_bytes});
  const auto slots = [&](int warps) {
    place_parts(kernel, gpu.has.large_shared_memory, table_bytes, warps, args);
    return std::max(0, gpu.shared_bytes - args->ring_at) / args->slot_bytes;
  };
  const int sharers = kernel.page_warps * column_warps;
  int rings = kernel.max_warps / sharers;
  while (rings > 0 && slots(rings * sharers) < rings * kLeastStages) --rings;
  if (rings == 0) return 0;
  args->consumer_warps = rings * sharers;
  args->stages = std::min(kMaxStages, slots(rings * sharers) / rings);
  return args->ring_at + rings * args->stages * args->slot_bytes;
}

// Returns whether at least one ring of the kernel fits into the GPU's shared memory.
inline bool fits(const DecodeKernel& kernel, const Gpu& gpu, int sharers = 1) {
  DecodeArgs args{};
  args.key_page = kernel.key_page;
  args.value_page = kernel.value_page;
  return lay_out_shared(kernel, gpu, sharers, &args) > 0;
}

}  // namespace kvant::cuda
