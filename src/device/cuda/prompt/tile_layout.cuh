// INT8 tiles of keys and values in the layout that the prefill kernel's products read. In global memory they
// have the byte order of shared memory, so one bulk copy brings a tile.
#pragma once

namespace kvant::cuda {

inline constexpr int kTileTokens = 128;

// A row is D bytes of Q or K, or of transposed V with a byte per token. 16-byte pieces of 8 consecutive rows
// are permuted to put a column of them into different banks (wgmma's swizzles of 64 and 128 bytes).
template <int RowBytes>
__host__ __device__ constexpr int swizzled(int row, int byte) {
  static_assert(RowBytes == 64 || RowBytes == 128);
  const int mask = RowBytes == 128 ? row & 7 : row >> 1 & 3;
  return row * RowBytes + ((byte >> 4 ^ mask) << 4 | (byte & 15));
}

// A tile of D channels: keys [128 tokens][D], signed; values [D][128 tokens], unsigned, where 128 is the
// channel's centre; then the tile's note.
struct TileNote {
  float key_scale, value_scale;
  int first_token;  // index in the sequence
  int is_rows;      // 0: a sealed page
};
template <int D>
struct PromptTile {
  static constexpr int kValues = kTileTokens * D;
  static constexpr int kNote = 2 * kTileTokens * D;
  static constexpr int kBytes = kNote + sizeof(TileNote);
  static_assert(sizeof(TileNote) == 16);

  // Return the place of a channel of keys, and of a byte in the row of a channel's values.
  __host__ __device__ static constexpr int key_place(int token, int channel) {
    return swizzled<D>(token, channel);
  }
  __host__ __device__ static constexpr int value_place(int channel, int byte) {
    return kValues + swizzled<kTileTokens>(channel, byte);
  }
};

// The layout for products of warps: two steps of 64 tokens, each contiguous, with keys in panels of at most
// 128 channels and then values; after them the tile's note.
inline constexpr int kStepTokens = 64;
static_assert(2 * kStepTokens == kTileTokens);
template <int D>
struct StepTile {
  static constexpr int kPanelBytes = D < 128 ? D : 128;  // bytes of a row of keys or queries
  static constexpr int kValues = kStepTokens * D;        // within a step
  static constexpr int kStepBytes = 2 * kStepTokens * D;
  static constexpr int kNote = 2 * kStepBytes;
  static constexpr int kBytes = kNote + sizeof(TileNote);

  __host__ __device__ static constexpr int key_place(int token, int channel) {
    return token / kStepTokens * kStepBytes + panel_place<kStepTokens>(token % kStepTokens, channel);
  }
  __host__ __device__ static constexpr int value_place(int channel, int byte) {
    return byte / kStepTokens * kStepBytes + kValues + swizzled<kStepTokens>(channel, byte % kStepTokens);
  }
  // Returns the place of a channel in panels of Rows rows.
  template <int Rows>
  __host__ __device__ static constexpr int panel_place(int row, int channel) {
    return channel / kPanelBytes * (Rows * kPanelBytes) + swizzled<kPanelBytes>(row, channel % kPanelBytes);
  }
};

// Returns the token at position 4 w + i of 128 in a row of values. Tokens are in the order in which a
// thread's scores form its A operand. (A thread of mma has columns 8 j + 2 t and the next of sums, but
// columns 4 t to 4 t + 3 and 16 + 4 t to 19 + 4 t of 8-bit operands.)
__host__ __device__ constexpr int value_token(int word, int i) {
  return word / 4 * 16 + word % 4 * 2 + i / 2 * 8 + i % 2;
}

// Returns the slot of the first tile of a sequence whose tokens begin at `begin` of all. Sequences' tiles are
// consecutive, and no two sequences can share a slot.
__host__ __device__ constexpr long long first_tile(long long begin, int seq) {
  return begin / kTileTokens + seq;
}

}  // namespace kvant::cuda
