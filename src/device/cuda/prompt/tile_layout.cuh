// INT8 tiles of keys and values as the prompt kernel's products read them: in global memory in the byte order
// of shared memory, so that one bulk copy brings a tile.
#pragma once

namespace kvant::cuda {

inline constexpr int kTileTokens = 128;

// A row of Q or K, D bytes, or of V transposed, a byte for each token: 16-byte pieces of 8 rows in succession
// change places so that a column of them lies in different banks (wgmma's swizzles of 64 and 128 bytes).
template <int RowBytes>
__host__ __device__ constexpr int swizzled(int row, int byte) {
  static_assert(RowBytes == 64 || RowBytes == 128);
  const int mask = RowBytes == 128 ? row & 7 : row >> 1 & 3;
  return row * RowBytes + ((byte >> 4 ^ mask) << 4 | (byte & 15));
}

// Of D channels: keys [128 tokens][D], signed; values [D][128 tokens], unsigned, 128 is the channel's centre;
// then what is said of the tile.
struct TileNote {
  float key_scale, value_scale;
  int first_token;  // of the sequence's
  int is_rows;      // 0: a sealed page
};
template <int D>
struct PromptTile {
  static constexpr int kValues = kTileTokens * D;
  static constexpr int kNote = 2 * kTileTokens * D;
  static constexpr int kBytes = kNote + sizeof(TileNote);
  static_assert(sizeof(TileNote) == 16);

  // Of a channel of keys, and of a byte of the row of a channel's values.
  __host__ __device__ static constexpr int key_place(int token, int channel) {
    return swizzled<D>(token, channel);
  }
  __host__ __device__ static constexpr int value_place(int channel, int byte) {
    return kValues + swizzled<kTileTokens>(channel, byte);
  }
};

// The same for products of warps: two steps of 64 tokens, each in one piece, its keys in panels of at most
// 128 channels and then its values; behind them what is said of the tile.
inline constexpr int kStepTokens = 64;
static_assert(2 * kStepTokens == kTileTokens);
template <int D>
struct StepTile {
  static constexpr int kPanelBytes = D < 128 ? D : 128;  // of a row of keys or queries
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
  // Of a channel in panels of so many rows.
  template <int Rows>
  __host__ __device__ static constexpr int panel_place(int row, int channel) {
    return channel / kPanelBytes * (Rows * kPanelBytes) + swizzled<kPanelBytes>(row, channel % kPanelBytes);
  }
};

// Tokens within a row of values are in the order in which a thread's scores are its A operand: position
// 4 w + i of 128 holds token value_token(w, i). (A thread of mma has columns 8 j + 2 t and the next of sums,
// but columns 4 t to 4 t + 3 and 16 + 4 t to 19 + 4 t of 8-bit operands.)
__host__ __device__ constexpr int value_token(int word, int i) {
  return word / 4 * 16 + word % 4 * 2 + i / 2 * 8 + i % 2;
}

// Sequences' tiles lie one after another, each beginning where no other can: the slot of the first tile of a
// sequence whose tokens begin at `begin` of all.
__host__ __device__ constexpr long long first_tile(long long begin, int seq) {
  return begin / kTileTokens + seq;
}

}  // namespace kvant::cuda
