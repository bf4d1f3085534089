// Multiplies with trellis codes in half precision, for pairs with another format. Levels are computed for
// four columns at a time (trellis_states.cuh) and then converted.
#pragma once

#include "device/cuda/pairs/generic/numbers.cuh"
#include "device/cuda/pairs/trellis.cuh"

namespace kvant::cuda {

// Returns the levels of value i of each column of a group, plus 128.
template <int Bits, int Groups>
__device__ __forceinline__ std::uint32_t biased_levels(const TrellisColumns<Bits, Groups>& columns, int group,
                                                       int i) {
  LevelFragment bytes;  // a level is the mean of two bytes with the same lowest bit
  set_levels(columns, group, i, 0, bytes);
  const std::uint32_t one = bytes[0][0] ^ kSignBits;
  const std::uint32_t other = bytes[1][0] ^ kSignBits;
  return (one & other) + (((one ^ other) >> 1) & 0x7f7f7f7fU);
}

// Returns bytes i of a and j of b, minus 128, as half-precision numbers.
__device__ __forceinline__ std::uint32_t half2_from_levels(std::uint32_t a, std::uint32_t b, int i, int j) {
  constexpr std::uint32_t k1152 = 0x64806480;
  const std::uint32_t bytes = __byte_perm(a, b, i | (4 + j) << 8);
  return subtract_half2((bytes & 0x00ff00ffU) | 0x64006400U, k1152);
}

// Selects the registers of `array` for a tile that is not a compile-time constant. All elements of the array
// are read, because selecting an address would put the array into memory.
template <int N, int M>
__device__ __forceinline__ void select(const std::uint32_t (&array)[N][M], int i, std::uint32_t (&x)[M]) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
    std::uint32_t chosen = array[0][m];
#pragma unroll
    for (int n = 1; n < N; ++n) {
      const std::uint32_t other = array[n][m];
      chosen = n == i ? other : chosen;
    }
    x[m] = chosen;
  }
}

// Sets the bytes before the columns of the lane's tokens. The columns of a lane continue the columns of the
// previous lane, and the columns of the first lane continue the columns of the last lane.
template <int D, int Bits>
__device__ __forceinline__ void link_key_columns(TrellisColumns<Bits, 4>& columns, int lane) {
  constexpr int kGroupsOfToken = D == 256 ? 2 : 1;  // a group has two tokens with heads of 64 channels
  const int lane_before = lane / 4 * 4 + (lane + 3) % 4;
#pragma unroll
  for (int group = 0; group < 4; ++group) {
    const std::uint32_t of_lane_before = columns.last_bytes(group | (kGroupsOfToken - 1), lane_before);
    const std::uint32_t before =
        group % kGroupsOfToken == 0 ? of_lane_before : columns.own_last_bytes(group - 1);
    columns.before[group] = __byte_perm(columns.own_last_bytes(group), before, D == 64 ? 0x2705 : 0x2107);
  }
}

// Holds the codes of a warp's block, for heads of 512 channels. The columns of a block continue the columns
// of the previous block. The first block continues the previous lane's columns in the last block.
template <int D>
struct BlockCodes {
  const unsigned char *own, *before;
  int lane_before;

  __device__ __forceinline__ BlockCodes(PageSide side, int code_bytes, const unsigned char* bytes, int lane) {
    constexpr int kBlocks = code_blocks(D);
    const int block = own_block<D>();
    const int of_block = code_bytes / kBlocks;
    own = bytes + block * of_block;
    before = bytes + (block + kBlocks - 1) % kBlocks * of_block;
    lane_before = lane;
    if (block == 0 && kBlocks > 1)
      lane_before = side == PageSide::key ? lane / 4 * 4 + (lane + 3) % 4 : (lane + 28) % kLanes;
  }
  template <int Bits>
  __device__ __forceinline__ const uint4* part(int i, int lane) const {
    return reinterpret_cast<const uint4*>(own + i * kPartBytes<Bits>) + lane;
  }
  // Returns the last word of the group that precedes a word of part i.
  template <int Bits>
  __device__ __forceinline__ std::uint32_t word_before(int i, int word) const {
    const auto* words = reinterpret_cast<const std::uint32_t*>(before + i * kPartBytes<Bits>);
    return words[(word / 4 * kLanes + lane_before) * 4 + word % 4];
  }

 private:
  template <int Bits>
  static constexpr int kPartBytes = Bits * 4 * kLanes * 4;
};

// Adds the queries times the levels of keys to s. A part of the page has 128 values in each lane.
template <int D>
__device__ __forceinline__ void score_trellis(int bits_of_page, int code_bytes, const unsigned char* bytes,
                                              const Query<block_dim(D)>& query, int lane, Scores& s) {
  constexpr int kOwn = block_dim(D);
  constexpr int kTilesOfPart = 256 / kOwn;
  const BlockCodes<D> codes(PageSide::key, code_bytes, bytes, lane);
  with_bits(bits_of_page, [&](auto bits) {
    constexpr int kBits = bits.value;
#pragma unroll 1
    for (int part = 0; part < kTokenTiles / kTilesOfPart; ++part) {
      TrellisColumns<kBits, 4> columns(codes.template part<kBits>(part, lane));
      if constexpr (code_blocks(D) == 1) {
        link_key_columns<D>(columns, lane);
      } else {
#pragma unroll
        for (int group = 0; group < 4; ++group)
          columns.before[group] =
              __byte_perm(columns.own_last_bytes(group),
                          codes.template word_before<kBits>(part, (group + 1) * kBits - 1), 0x2107);
      }
#pragma unroll
      for (int tile = 0; tile < kTilesOfPart; ++tile) {
        float sum[4] = {};
#pragma unroll
        for (int odd_k = 0; odd_k < 2; ++odd_k) {  // contraction tiles with 4 of a column's 8 values
          std::uint32_t a[kOwn / 32][4];
#pragma unroll
          for (int reg = 0; reg < 4; ++reg) {
            // The columns of a row are half a group with heads of 64 channels, one group with 128 channels,
            // and two groups with 256 channels.
            constexpr int kColumns = kOwn / 32;
            const int first_column = (2 * tile + reg % 2) * kColumns;
            const int i = 4 * odd_k + reg / 2 * 2;
#pragma unroll
            for (int group = first_column / 4; group <= (first_column + kColumns - 1) / 4; ++group) {
              const std::uint32_t first = biased_levels(columns, group, i);
              const std::uint32_t second = biased_levels(columns, group, i + 1);
#pragma unroll
              for (int byte = 0; byte < 4; ++byte) {
                const int column = group * 4 + byte - first_column;
                if (column < 0 || column >= kColumns) continue;
                a[column][reg] = half2_from_levels(first, second, byte, byte);
              }
            }
          }
#pragma unroll
          for (int column = 0; column < kOwn / 32; ++column) {
            const int k = 2 * column + odd_k;
            mma_f16(sum, a[column][0], a[column][1], a[column][2], a[column][3], query.b[k][0],
                    query.b[k][1]);
          }
        }
#pragma unroll
        for (int to = tile; to < kTokenTiles; to += kTilesOfPart) {
#pragma unroll
          for (int i = 0; i < 4; ++i) s[to][i] = to == part * kTilesOfPart + tile ? sum[i] : s[to][i];
        }
      }
    }
  });
}

// Computes out += weights times the levels of values.
template <int D>
__device__ __forceinline__ void mix_trellis(int bits_of_page, int code_bytes, const unsigned char* bytes,
                                            const Weights& weights, int lane,
                                            float (&out)[block_dim(D) / 16][4]) {
  // A part has 128 values in each lane, and two parts cover 32 tokens.
  constexpr int kGroups = 256 / block_dim(D);
  const BlockCodes<D> codes(PageSide::value, code_bytes, bytes, lane);
  with_bits(bits_of_page, [&](auto bits) {
    constexpr int kBits = bits.value;
#pragma unroll 1
    for (int part = 0; part < 2 * kSteps / kGroups; ++part) {
      using Columns = TrellisColumns<kBits, kGroups>;
      Columns columns(codes.template part<kBits>(part, lane));
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
        columns.before[group] =
            code_blocks(D) == 1 ? columns.last_bytes(group, (lane + 28) % 32)
                                : codes.template word_before<kBits>(part, (group + 1) * Columns::kRows - 1);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const int step = (part * kGroups + group) / 2;
        const int half = (part * kGroups + group) % 2;
        std::uint32_t even[2], odd[2];  // pairs of tiles whose rows g and g + 8 are tokens 4g .. 4g + 3
        select(weights.b, 2 * step, even);
        select(weights.b, 2 * step + 1, odd);
        // This lane's tokens are 4t .. 4t + 3 in the first half, then 4t + 16 .. 4t + 19. The first row g of
        // these tokens is t, then t + 4.
        const int from = lane / 4 * 4 + half * 2 + lane % 4 / 2;
        const int selector = lane % 2 == 0 ? 0x5410 : 0x7632;
        const std::uint32_t b0 =
            __byte_perm(__shfl_sync(~0U, even[0], from), __shfl_sync(~0U, even[1], from), selector);
        const std::uint32_t b1 =
            __byte_perm(__shfl_sync(~0U, odd[0], from), __shfl_sync(~0U, odd[1], from), selector);
#pragma unroll
        for (int m = 0; m < block_dim(D) / 16; ++m) {
          const std::uint32_t first = biased_levels(columns, group, 2 * m);
          const std::uint32_t second = biased_levels(columns, group, 2 * m + 1);
          mma_f16(out[m], half2_from_levels(first, first, 0, 1), half2_from_levels(second, second, 0, 1),
                  half2_from_levels(first, first, 2, 3), half2_from_levels(second, second, 2, 3), b0, b1);
        }
      }
    }
  });
}

}  // namespace kvant::cuda
