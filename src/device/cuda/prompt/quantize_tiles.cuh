// Makes INT8 tiles of keys and values, in the first pass of prefill attention. The channels' centres are
// subtracted, and each tile has one scale per side (tile_layout.cuh). Values are also divided by the
// channels' scales (channel_ranges.cuh).
#pragma once

#include "device/cuda/prompt/channel_ranges.cuh"
#include "device/cuda/prompt/find_tile.cuh"

namespace kvant::cuda {

// Smaller magnitudes count as zero. The product of a query's and a key's scale must not become zero.
inline constexpr float kLeastReach = 1e-15F;
inline constexpr int kByteMax = 127;
inline constexpr int kByteCentre = 128;  // offset of values' unsigned bytes

__device__ __forceinline__ std::uint32_t join_low_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                                        std::uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// Packs four products of numbers and factors as signed bytes. The products are at most 127 in magnitude.
__device__ __forceinline__ std::uint32_t signed_bytes(const float* x, const float* factors) {
  if constexpr (Architecture::kPacksBytes) {
    return pack_signed_bytes(x[0] * factors[0], x[1] * factors[1],
                             pack_signed_bytes(x[2] * factors[2], x[3] * factors[3], 0));
  } else {
    // The low byte of the sum is the rounded number.
    std::uint32_t rounded[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) rounded[i] = __float_as_uint(fmaf(x[i], factors[i], 0x1.8p23F));
    return join_low_bytes(rounded[0], rounded[1], rounded[2], rounded[3]);
  }
}

// Packs four products of numbers and a factor as unsigned bytes around kByteCentre. The products are at most
// 127 in magnitude.
__device__ __forceinline__ std::uint32_t centred_bytes(const float (&x)[4], float factor) {
  if constexpr (Architecture::kPacksBytes) {
    float y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = fmaf(x[i], factor, kByteCentre);
    return pack_unsigned_bytes(y[0], y[1], pack_unsigned_bytes(y[2], y[3], 0));
  } else {
    std::uint32_t rounded[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) rounded[i] = __float_as_uint(fmaf(x[i], factor, 0x1.8p23F + kByteCentre));
    return join_low_bytes(rounded[0], rounded[1], rounded[2], rounded[3]);
  }
}

// Loads eight consecutive channels, with all loads in flight together.
__device__ __forceinline__ void load_eight(const float* from, float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(from + i);
    x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
  }
}
__device__ __forceinline__ void load_reciprocals(const float* from, float (&x)[8]) {
  load_eight(from, x);
#pragma unroll
  for (float& each : x) each = reciprocal_fast(each);
}

// Stores a tile's note. Keys and values each write two fields of the note.
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

// Makes one side of a tile from the rows that a CTA's threads hold. `channels` holds the centres of the head
// and side. For values, D scales follow.
template <class Tile, int D, bool IsHalf>
__device__ __forceinline__ void quantize_octets(OctetsOfTile<D>& octets, const TileAt& at, int first_token,
                                                const float* channels,
                                                std::uint32_t (&maxima)[kQuantizeThreads / 32],
                                                unsigned char* to) {
  using Octets = OctetsOfTile<D>;
  float centre[8], inverse[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  load_eight(channels + octets.octet * 8, centre);
  if (at.is_value) load_reciprocals(channels + D + octets.octet * 8, inverse);
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
  if (threadIdx.x == 0) put_note<Tile>(to, at, first_token, scale);
  const float of_scale = 1 / scale;
#pragma unroll
  for (int j = 0; j < 8; ++j) inverse[j] *= of_scale;
  // Subtracts the centre. Tokens that the tile does not have become 0.
  const auto centred = [&](int i, float(&x)[8]) {
    unpack_octet<IsHalf>(octets.octets[i], x);
    const bool is_token = octets.token(i) < at.n_tokens;
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = is_token ? x[j] - centre[j] : 0;
  };
  if (at.is_value) {
    // A thread processes four tokens together, which fill a word of each channel.
#pragma unroll
    for (int first = 0; first < Octets::kRows; first += 4) {
      float x[4][8];
#pragma unroll
      for (int i = 0; i < 4; ++i) centred(first + i, x[i]);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float tokens[4] = {x[0][j], x[1][j], x[2][j], x[3][j]};
        *reinterpret_cast<std::uint32_t*>(to +
                                          Tile::value_place(octets.octet * 8 + j, octets.word(first) * 4)) =
            centred_bytes(tokens, inverse[j]);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < Octets::kRows; ++i) {
      float x[8];
      centred(i, x);
      *reinterpret_cast<uint2*>(to + Tile::key_place(octets.token(i), octets.octet * 8)) =
          make_uint2(signed_bytes(x, inverse), signed_bytes(x + 4, inverse + 4));
    }
  }
}

// Rows that are read in place leave registers for one more CTA.
template <int D, class Source>
inline constexpr int kQuantizeCtas = kTileCtas<D> + (D <= 128 && !Source::kInSharedMemory ? 1 : 0);

// Makes the tile of a slot. The grid is [sides][KV heads][1 + tiles], where the first CTA makes the plan.
// Source::slot_of() returns the slot that a CTA serves.
template <class Tile, int D, bool IsHalf, class Source>
__global__ void __launch_bounds__(kQuantizeThreads, (kQuantizeCtas<D, Source>))
    quantize_tiles_kernel(const __grid_constant__ PromptArgs args, const __grid_constant__ Source source,
                          const __grid_constant__ BlockUnits units) {
  extern __shared__ __align__(16) unsigned char page_memory[];
  if (blockIdx.x == 0) {
    if (blockIdx.y == 0 && blockIdx.z == 0) plan_prompt(args, units);
    return;
  }
  __shared__ std::uint32_t maxima[kQuantizeThreads / 32];
  const int head = static_cast<int>(blockIdx.y);
  const bool is_value = blockIdx.z != 0;
  const int slot = source.slot_of(args, static_cast<int>(blockIdx.x) - 1, is_value);
  TileAt at;
  int first_token;
  if (slot < 0 || !find_tile(args, slot, head, is_value, &at, &first_token)) return;
  OctetsOfTile<D> octets(is_value);
  constexpr int kTokens = Source::template kTokens<D>;
  octets.template load<0, kTokens>(source.template read<D>(args, at, page_memory), at.n_tokens);
  if constexpr (kTokens < kTileTokens) {
    static_assert(2 * kTokens == kTileTokens);
    octets.template load<kTokens, kTokens>(source.template read<D>(args, at, page_memory, kTokens),
                                           at.n_tokens);
  }
  // The kernels before this one compute the ranges of channels.
  wait_for_predecessors();
  const float* channels =
      args.channels + (static_cast<std::int64_t>(at.seq) * args.n_kv_heads + head) * 3 * D;
  quantize_octets<Tile, D, IsHalf>(octets, at, first_token, channels + (is_value ? D : 0), maxima,
                                   tile_of_slot<Tile>(args, slot, head));
}

}  // namespace kvant::cuda
