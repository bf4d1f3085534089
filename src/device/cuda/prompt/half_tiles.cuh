// Makes the half-precision tiles of prefill attention from rows and pages. A tile has keys as [128 tokens][D]
// and values as [D][128 tokens], in the layout that products read from shared memory. The kernel also makes
// the plan.
#pragma once

#include <type_traits>

#include "device/cuda/page/row_channels.cuh"
#include "device/cuda/prompt/find_tile.cuh"
#include "device/cuda/prompt/page_rows.cuh"
#include "device/cuda/seal/seal_page.cuh"

namespace kvant::cuda {

// Panels of this many columns follow each other, each with swizzled rows of 128 bytes (tile_layout.cuh).
inline constexpr int kPanelColumns = 64;
// Returns the place in bytes of a number in a matrix of Rows rows whose columns run along the contraction.
template <int Rows>
__host__ __device__ constexpr int half_place(int row, int column) {
  return column / kPanelColumns * (Rows * 128) + swizzled<128>(row, column % kPanelColumns * 2);
}

// Says where the sides of a tile lie.
template <int D>
struct HalfTile {
  static constexpr int kSideBytes = kTileTokens * D * 2;
  static constexpr int kBytes = 2 * kSideBytes;  // bytes of keys, then values
};

// Converts eight numbers to half precision, saturated.
__device__ __forceinline__ uint4 half_octet_of(const float (&x)[8]) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __half2 pair = __halves2half2(half_saturated(x[2 * i]), half_saturated(x[2 * i + 1]));
    words[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Converts eight 16-bit numbers to half precision.
template <bool IsHalf>
__device__ __forceinline__ uint4 half_octet(const uint4& from) {
  if constexpr (IsHalf) return from;
  float x[8];
  unpack_octet<false>(from, x);
  return half_octet_of(x);
}

// Returns number i of eight 16-bit numbers.
__device__ __forceinline__ std::uint32_t number_of(const uint4& octet, int i) {
  const std::uint32_t words[4] = {octet.x, octet.y, octet.z, octet.w};
  return words[i / 2] >> (16 * (i % 2)) & 0xffff;
}

// Divides a tile of Tokens tokens among threads. A thread has 8 neighbouring channels of kRows tokens. For
// keys, a thread has every kRowGroups-th token, so a warp stores whole rows. For values, a thread has groups
// of four consecutive tokens, so a warp stores whole rows of the transposed tile.
template <int D, int Tokens>
struct HalfOctets {
  static constexpr int kOctets = D / 8;
  static constexpr int kRowGroups = kQuantizeThreads / kOctets;
  static constexpr int kRows = Tokens / kRowGroups;
  static_assert(kRows % 4 == 0);
  int octet, row_group;

  __device__ __forceinline__ explicit HalfOctets(bool is_value)
      : octet(static_cast<int>(threadIdx.x) % kOctets), row_group(static_cast<int>(threadIdx.x) / kOctets) {
    if (!is_value) return;
    octet = static_cast<int>(threadIdx.x) / kRowGroups;
    row_group = static_cast<int>(threadIdx.x) % kRowGroups;
  }
  template <bool IsHalf>
  __device__ __forceinline__ uint4 load(const TileRows& rows, int n_tokens, int token) const {
    if (token >= n_tokens) return make_uint4(0, 0, 0, 0);
    return half_octet<IsHalf>(*reinterpret_cast<const uint4*>(rows.data + token * rows.stride + octet * 8));
  }

  // Stores the keys in `rows` as the tokens from `first` on of the tile `to`.
  template <bool IsHalf>
  __device__ __forceinline__ void store_keys(const TileRows& rows, int n_tokens, int first,
                                             unsigned char* to) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int token = i * kRowGroups + row_group;
      *reinterpret_cast<uint4*>(to + half_place<kTileTokens>(first + token, octet * 8)) =
          load<IsHalf>(rows, n_tokens, token);
    }
  }
  template <bool IsHalf>
  __device__ __forceinline__ void store_values(const TileRows& rows, int n_tokens, int first,
                                               unsigned char* to) const {
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) {
      const int token = (i * kRowGroups + row_group) * 4;
      uint4 four[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) four[j] = load<IsHalf>(rows, n_tokens, token + j);
#pragma unroll
      for (int channel = 0; channel < 8; ++channel)
        *reinterpret_cast<uint2*>(to + half_place<D>(octet * 8 + channel, first + token)) =
            make_uint2(number_of(four[0], channel) | number_of(four[1], channel) << 16,
                       number_of(four[2], channel) | number_of(four[3], channel) << 16);
    }
  }
};

// Undoes the rotation of rows in shared memory, [n_tokens][D], in place. The rows are half precision
// afterwards. Lanes that share a row take groups of eight channels in turn. Rows that are four apart lie in
// different banks.
template <int D>
__device__ __forceinline__ void rotate_back(unsigned short* rows, std::int64_t stride, int n_tokens) {
  constexpr int kLanesOfRow = D <= 128 ? 4 : 8;
  constexpr int kOctets = D / 8 / kLanesOfRow;  // groups of eight channels of a lane
  constexpr int kRowsOfWarp = 32 / kLanesOfRow;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int of_warp = lane / kLanesOfRow;
  const int row = kRowsOfWarp == 8 ? of_warp % 2 * 4 + of_warp / 2 : of_warp;
#pragma unroll 1
  for (int token = static_cast<int>(threadIdx.x) / 32 * kRowsOfWarp + row; token < n_tokens;
       token += kQuantizeThreads / kLanesOfRow) {
    auto* const octets = reinterpret_cast<uint4*>(rows + token * stride) + lane % kLanesOfRow;
    float x[kOctets * 8];
#pragma unroll
    for (int i = 0; i < kOctets; ++i) {
      float octet[8];
      unpack_octet<false>(octets[i * kLanesOfRow], octet);
#pragma unroll
      for (int j = 0; j < 8; ++j) x[i * 8 + j] = octet[j];
    }
    rotate_channels<kLanesOfRow>(lane, x);
#pragma unroll
    for (int i = 0; i < kOctets; ++i) {
      float octet[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) octet[j] = x[i * 8 + j];
      octets[i * kLanesOfRow] = half_octet_of(octet);
    }
  }
}

// Makes the tile of a slot. The grid is [sides][KV heads][1 + slots], where the first CTA makes the plan.
template <int D, bool IsHalf, class Source>
__global__ void __launch_bounds__(kQuantizeThreads, kTileCtas<D>)
    half_tiles_kernel(const __grid_constant__ PromptArgs args, const __grid_constant__ Source source,
                      int block_rows) {
  extern __shared__ __align__(16) unsigned char page_memory[];
  if (blockIdx.x == 0) {
    if (blockIdx.y == 0 && blockIdx.z == 0) plan_prompt(args, {block_rows, 1});
    return;
  }
  const int slot = static_cast<int>(blockIdx.x) - 1;
  const int head = static_cast<int>(blockIdx.y);
  const bool is_value = blockIdx.z != 0;
  TileAt at;
  int first_token;
  if (!find_tile(args, slot, head, is_value, &at, &first_token)) return;
  unsigned char* to = tile_of_slot<HalfTile<D>>(args, slot, head);
  constexpr int kTokens = Source::template kTokens<D>;
  const HalfOctets<D, kTokens> octets(is_value);
#pragma unroll 1
  for (int first = 0; first < kTileTokens; first += kTokens) {
    const TileRows rows = source.template read<D>(args, at, page_memory, first);
    const int n_tokens = at.n_tokens - first;
    const auto store = [&]<bool AreHalf>(std::bool_constant<AreHalf>) {
      if (is_value) {
        octets.template store_values<AreHalf>(rows, n_tokens, first, to + HalfTile<D>::kSideBytes);
      } else {
        octets.template store_keys<AreHalf>(rows, n_tokens, first, to);
      }
    };
    if constexpr (Source::kInSharedMemory) {
      if ((is_value ? args.value_hadamard : args.key_hadamard) != 0) {
        rotate_back<D>(Source::template rows<D>(page_memory), rows.stride, min(n_tokens, kTokens));
        __syncthreads();
        store(std::true_type{});
        continue;
      }
    }
    store(std::bool_constant<IsHalf>{});
  }
}

}  // namespace kvant::cuda
