// The first pass of prompt attention: keys and values become INT8 tiles (tile_layout.cuh), less the channels'
// centres, values also divided by the channels' scales (channel_ranges.cuh); a scale for each tile.
#pragma once

#include "attention/cuda/prompt/channel_ranges.cuh"
#include "attention/cuda/prompt/find_tile.cuh"

namespace kvant::cuda {

// What is smaller counts as zero; scales of queries and keys multiplied must not.
inline constexpr float kLeastReach = 1e-15F;
inline constexpr int kByteMax = 127;
inline constexpr int kByteCentre = 128;  // of values' unsigned bytes

__device__ __forceinline__ std::uint32_t join_low_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                                        std::uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// What is said of a tile, by the side that knows it.
template <class Tile>
__device__ __forceinline__ void put_note(unsigned char* tile, const TileAt& at, int first_token,
                                         float scale) {
  auto& note = *reinterpret_cast<TileNote*>(tile + Tile::kNote);
  if (at.is_value) {
    note.value_scale = scale;
    note.is_rows = at.is_rows ? 1 : 0;
  } else {
    note.key_scale = scale;
    note.first_token = first_token;
  }
}

// Grid: the plan, then tiles (Source::slot_of); KV heads; sides.
template <class Tile, int D, bool IsHalf, class Source>
__global__ void __launch_bounds__(kQuantizeThreads, kTileCtas<D>)
    quantize_tiles_kernel(const __grid_constant__ PromptArgs args, const __grid_constant__ Source source,
                          int block_rows) {
  extern __shared__ __align__(16) unsigned char page_memory[];
  using Octets = OctetsOfTile<D>;
  if (blockIdx.x == 0) {
    if (blockIdx.y == 0 && blockIdx.z == 0) plan_prompt(args, block_rows);
    return;
  }
  __shared__ std::uint32_t maxima[kQuantizeThreads / 32];
  const int head = static_cast<int>(blockIdx.y);
  const bool is_value = blockIdx.z != 0;
  const int slot = source.slot_of(args, static_cast<int>(blockIdx.x) - 1, is_value);
  TileAt at;
  int first_token;
  if (slot < 0 || !find_tile(args, slot, head, is_value, &at, &first_token)) return;
  Octets octets(is_value);
  constexpr int kTokens = Source::template kTokens<D>;
  octets.template load<0, kTokens>(source.template read<D>(args, at, page_memory), at.n_tokens);
  if constexpr (kTokens < kTileTokens) {
    static_assert(2 * kTokens == kTileTokens);
    octets.template load<kTokens, kTokens>(source.template read<D>(args, at, page_memory, kTokens),
                                           at.n_tokens);
  }
  wait_for_predecessors();  // the ranges of channels

  float centre[8], inverse[8];
  const float* channels = args.channels +
                          (static_cast<std::int64_t>(at.seq) * args.n_kv_heads + head) * 3 * D +
                          (is_value ? D : 0) + octets.octet * 8;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    centre[i] = channels[i];
    inverse[i] = is_value ? 1 / channels[D + i] : 1;
  }
  float largest = 0;
#pragma unroll
  for (int i = 0; i < Octets::kRows; ++i) {
    float x[8];
    unpack_octet<IsHalf>(octets.octets[i], x);
    if (octets.token(i) < at.n_tokens) {
#pragma unroll
      for (int j = 0; j < 8; ++j) largest = fmaxf(largest, fabsf((x[j] - centre[j]) * inverse[j]));
    }
  }
  octets.forget_unpacked();
  const float scale = fmaxf(largest_of_cta(largest, maxima), kLeastReach) / kByteMax;
  unsigned char* to = args.tiles + (static_cast<std::int64_t>(slot) * args.n_kv_heads + head) * Tile::kBytes;
  if (threadIdx.x == 0) put_note<Tile>(to, at, first_token, scale);
#pragma unroll
  for (int j = 0; j < 8; ++j) inverse[j] /= scale;
  // The low byte of the sum is the rounded number, plus the centre for values.
  const float rounder = 0x1.8p23F + (is_value ? kByteCentre : 0);
  const auto round = [&](int i, std::uint32_t(&bits)[8]) {
    float x[8];
    unpack_octet<IsHalf>(octets.octets[i], x);
    const bool is_token = octets.token(i) < at.n_tokens;
#pragma unroll
    for (int j = 0; j < 8; ++j)
      bits[j] = __float_as_uint(is_token ? fmaf(x[j] - centre[j], inverse[j], rounder) : rounder);
  };
  if (is_value) {
    // Four tokens at a time: a word of each channel.
#pragma unroll
    for (int first = 0; first < Octets::kRows; first += 4) {
      std::uint32_t words[8];
      round(first, words);
#pragma unroll
      for (int i = 1; i < 4; ++i) {
        std::uint32_t bits[8];
        round(first + i, bits);
        const int select = i == 1 ? 0x3240 : i == 2 ? 0x3410 : 0x4210;  // into byte i
#pragma unroll
        for (int j = 0; j < 8; ++j) words[j] = __byte_perm(words[j], bits[j], select);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j)
        *reinterpret_cast<std::uint32_t*>(
            to + Tile::value_place(octets.octet * 8 + j, octets.word(first) * 4)) = words[j];
    }
  } else {
#pragma unroll
    for (int i = 0; i < Octets::kRows; ++i) {
      std::uint32_t bits[8];
      round(i, bits);
      *reinterpret_cast<uint2*>(to + Tile::key_place(octets.token(i), octets.octet * 8)) =
          make_uint2(join_low_bytes(bits[0], bits[1], bits[2], bits[3]),
                     join_low_bytes(bits[4], bits[5], bits[6], bits[7]));
    }
  }
}

}  // namespace kvant::cuda
