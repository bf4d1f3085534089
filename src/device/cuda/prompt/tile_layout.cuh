// Describes INT8 tiles of keys and values in the layouts that products of prefill attention read. Tiles in
// global memory have the byte order of shared memory, so one bulk copy brings a tile.
#pragma once

namespace kvant::cuda {

inline constexpr int kTileTokens = 128;

// Returns the place of a byte in a matrix whose rows have RowBytes bytes. A row is D bytes of Q or K, or a
// byte per token of transposed V. The 16-byte pieces of 8 consecutive rows are permuted to put a column of
// pieces into different banks (wgmma's swizzles of 64 and 128 bytes).
template <int RowBytes>
__host__ __device__ constexpr int swizzled(int row, int byte) {
  static_assert(RowBytes == 64 || RowBytes == 128);
  const int mask = RowBytes == 128 ? row & 7 : row >> 1 & 3;
  return row * RowBytes + ((byte >> 4 ^ mask) << 4 | (byte & 15));
}

// Describes the numbers at the end of a tile.
struct TileNote {
  float key_scale, value_scale;
  int first_token;  // index in the sequence
  int is_rows;      // 0 for a sealed page
};
// Describes a tile of D channels. The tile has keys as [128 tokens][D] signed bytes, values as [D][128
// tokens] unsigned bytes, and the tile's note. In values, 128 stands for the channel's centre.
template <int D>
struct PromptTile {
  static constexpr int kValues = kTileTokens * D;
  static constexpr int kNote = 2 * kTileTokens * D;
  static constexpr int kBytes = kNote + sizeof(TileNote);
  static_assert(sizeof(TileNote) == 16);

  // key_place() returns the place of a channel of keys, and value_place() returns the place of a byte in the
  // row of a channel's values.
  __host__ __device__ static constexpr int key_place(int token, int channel) {
    return swizzled<D>(token, channel);
  }
  __host__ __device__ static constexpr int value_place(int channel, int byte) {
    return kValues + swizzled<kTileTokens>(channel, byte);
  }
};

// Describes a tile for products of warps, which has two steps of 64 tokens and then the tile's note. Each
// step is contiguous, with keys in panels of at most 128 channels and then values.
inline constexpr int kStepTokens = 64;
static_assert(2 * kStepTokens == kTileTokens);
template <int D>
struct StepTile {
  static constexpr int kPanelBytes = D < 128 ? D : 128;  // bytes of a row of keys or queries in a panel
  static constexpr int kValues = kStepTokens * D;        // offset of values in a step, in bytes
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

// Returns the token of byte i of word `word` in a row of values. Tokens have the order in which a thread's
// scores form its A operand. A thread has columns 8 j + 2 t and 8 j + 2 t + 1 of an MMA's sums, and columns 4
// t to 4 t + 3 and 16 + 4 t to 19 + 4 t of 8-bit operands.
__host__ __device__ constexpr int value_token(int word, int i) {
  return word / 4 * 16 + word % 4 * 2 + i / 2 * 8 + i % 2;
}

// Returns the slot of the first tile of a sequence whose first token has index `begin` among the tokens of
// all sequences. A sequence's tiles are consecutive, and no two sequences share a slot.
__host__ __device__ constexpr long long first_tile(long long begin, int seq) {
  return begin / kTileTokens + seq;
}

}  // namespace kvant::cuda
