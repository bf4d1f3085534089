// Reads the 16-bit rows from which a tile is made, and shares them among the threads of a CTA. Each thread
// has eight channels of a few tokens.
#pragma once

#include <cuda_fp16.h>

#include "device/cuda/common/ptx.cuh"
#include "device/cuda/prompt/plan.cuh"

namespace kvant::cuda {

inline constexpr int kQuantizeThreads = kPlanThreads;
// An SM makes tiles with this many CTAs, which is as many as their shared memory allows.
template <int D>
inline constexpr int kTileCtas = D <= 128 ? 3 : 2;

template <bool IsHalf>
__device__ __forceinline__ float2 unpack_pair(std::uint32_t pair) {
  if constexpr (IsHalf) return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000U));
}

template <bool IsHalf>
__device__ __forceinline__ void unpack_octet(const uint4& from, float (&to)[8]) {
  const std::uint32_t words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack_pair<IsHalf>(words[i]);
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}

// Returns the largest of a CTA's numbers, which must not be negative. All threads must call this function.
template <int Warps>
__device__ inline float largest_of_cta(float x, std::uint32_t (&scratch)[Warps]) {
  const std::uint32_t of_warp = __reduce_max_sync(~0U, __float_as_uint(x));
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = of_warp;
  __syncthreads();
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < Warps; ++i) largest = max(largest, scratch[i]);
  __syncthreads();
  return __uint_as_float(largest);
}

// Names a tile of a sequence, KV head and side. The tile is made from a sealed page or from rows.
struct TileAt {
  int seq, head;
  bool is_value;
  bool is_rows;
  int number;    // number of the page, or of the tile of rows
  int n_tokens;  // 0 to kTileTokens
};

__device__ __forceinline__ TileAt page_at(int seq, int page, int head, bool is_value) {
  return {seq, head, is_value, false, page, kTileTokens};
}

__device__ __forceinline__ TileAt rows_at(const SequenceRows& rows, int seq, int tile, int head,
                                          bool is_value) {
  const int n_tokens = max(min(rows.k_tokens - tile * kTileTokens, kTileTokens), 0);
  return {seq, head, is_value, true, tile, n_tokens};
}

// Locates rows of a tile's tokens, [n_tokens][D], which are `stride` numbers apart.
struct TileRows {
  const unsigned short* data;
  std::int64_t stride;
};

// Reads rows in place if there are no pages. Any source returns kTokens tokens at a time, and the returned
// rows begin with the tile's token `first`.
struct OnlyRows {
  // Returns the slot whose tile CTA n of a side makes. A negative number means that the CTA makes no tile.
  __device__ static int slot_of(const PromptArgs&, int n, bool) { return n; }

  static constexpr bool kInSharedMemory = false;
  static constexpr int kSamplingCtas = 4;  // CTAs of an SM, as many as are launched for four sequences
  template <int D>
  static constexpr int kSharedBytes = 0;
  template <int D>
  static constexpr int kTokens = kTileTokens;

  template <int D>
  __device__ __forceinline__ TileRows read(const PromptArgs& args, const TileAt& at, unsigned char*,
                                           int first = 0) const {
    const PromptRows& from = at.is_value ? args.v : args.k;
    const std::int64_t row =
        args.k_begins[at.seq] + static_cast<std::int64_t>(at.number) * kTileTokens + first;
    return {
        static_cast<const unsigned short*>(from.data) + row * from.token_stride + at.head * from.head_stride,
        from.token_stride};
  }
};

// Holds a thread's share of a tile: 8 neighbouring channels of kRows tokens.
template <int D>
struct OctetsOfTile {
  static constexpr int kOctets = D / 8;
  static constexpr int kRowGroups = kQuantizeThreads / kOctets;
  static constexpr int kRows = kTileTokens / kRowGroups;

  int octet, row_group;
  uint4 octets[kRows];
  bool is_value;

  // A warp has whole rows of keys. For values, a warp has whole rows of the transposed tile.
  __device__ __forceinline__ explicit OctetsOfTile(bool of_values)
      : octet(static_cast<int>(threadIdx.x) % kOctets),
        row_group(static_cast<int>(threadIdx.x) / kOctets),
        is_value(of_values) {
    if (!of_values) return;
    octet = static_cast<int>(threadIdx.x) / kRowGroups;
    row_group = static_cast<int>(threadIdx.x) % kRowGroups;
  }
  // Returns the tile's token whose channels are in octets[i].
  __device__ __forceinline__ int token(int i) const {
    return is_value ? value_token(word(i), i % 4) : i * kRowGroups + row_group;
  }
  // Returns the word of a channel's values to which octets[i] belongs.
  __device__ __forceinline__ int word(int i) const { return i / 4 * kRowGroups + row_group; }
  // Makes the compiler unpack `octets` again after this call, because unpacked numbers would take twice the
  // registers.
  __device__ __forceinline__ void forget_unpacked() {
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      asm volatile("" : "+r"(octets[i].x), "+r"(octets[i].y), "+r"(octets[i].z), "+r"(octets[i].w));
  }
  // Loads tokens [First, First + Tokens) of the tile, which has n_tokens tokens. `rows` begins with token
  // First.
  template <int First, int Tokens>
  __device__ __forceinline__ void load(const TileRows& rows, int n_tokens) {
#pragma unroll
    for (int i = First * kRows / kTileTokens; i < (First + Tokens) * kRows / kTileTokens; ++i)
      octets[i] =
          token(i) < n_tokens
              ? *reinterpret_cast<const uint4*>(rows.data + (token(i) - First) * rows.stride + octet * 8)
              : make_uint4(0, 0, 0, 0);
  }
};

}  // namespace kvant::cuda
