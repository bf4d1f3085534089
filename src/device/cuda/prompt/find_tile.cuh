// Finds the sequence and the tile of a slot. Slots number the tiles of all sequences. Tiles of sealed pages
// come first, and tiles of rows follow.
#pragma once

#include "device/cuda/prompt/tile_rows.cuh"

namespace kvant::cuda {

// Returns the last sequence whose slots begin at or before `slot`. begin(i) returns the first slot of
// sequence i.
template <class Begin>
__device__ inline int sequence_of_slot(const PromptArgs& args, int slot, const Begin& begin) {
  int low = 0;
  int high = args.n_seqs - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (begin(middle) <= slot)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

// Finds the tile of a slot. Returns false if the slot has no tile.
__device__ __forceinline__ bool find_tile(const PromptArgs& args, int slot, int head, bool is_value,
                                          TileAt* at, int* first_token) {
  if (slot < args.page_slots) {
    if (slot >= args.sealed_begins[args.n_seqs]) return false;
    const int seq = sequence_of_slot(args, slot, [&](int i) { return args.sealed_begins[i]; });
    const SequenceRows rows = rows_of_sequence(args, seq);
    *at = page_at(seq, slot - rows.page_begin, head, is_value);
    *first_token = at->number * kTileTokens;
    return at->number >= first_seen_page(args, rows);
  }
  const int row_slot = slot - args.page_slots;
  const auto begin = [&](int i) { return static_cast<int>(first_tile(args.k_begins[i], i)); };
  const int seq = sequence_of_slot(args, row_slot, begin);
  const SequenceRows rows = rows_of_sequence(args, seq);
  *at = rows_at(rows, seq, row_slot - begin(seq), head, is_value);
  *first_token = rows.first_token + at->number * kTileTokens;
  return at->number == 0 || at->n_tokens > 0;
}

// Returns the address of the tile of a slot and KV head.
template <class Tile>
__device__ __forceinline__ unsigned char* tile_of_slot(const PromptArgs& args, int slot, int head) {
  return args.tiles + (static_cast<std::int64_t>(slot) * args.n_kv_heads + head) * Tile::kBytes;
}

}  // namespace kvant::cuda
