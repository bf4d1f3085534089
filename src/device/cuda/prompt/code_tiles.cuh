// Makes INT8 tiles directly from the codes of sealed pages, without intermediate rows. Codes must have 4
// bits. Grids must be by channel or, for values, by token. Tiles of pages with protected tokens are made from
// rows instead (page_rows.cuh).
//
// With grids by channel, all 64 tokens of a warp share one grid in each channel. One half-precision product
// and sum then turns two codes into INT8. A first pass over all codes finds the tile's scale. With grids by
// token, products and sums are F32.
#pragma once

#include <cuda_fp16.h>

#include "device/cuda/prompt/find_tile.cuh"
#include "device/cuda/prompt/quantize_tiles.cuh"
#include "device/cuda/rows/dequantize_args.h"

namespace kvant::cuda {

// A progressive format's grid covers this many tokens.
inline constexpr int kGridTokens = 64;
inline constexpr int kLargestCode = 15;

// Returns whether pages of a head and side have 4-bit codes with grids by channel.
inline bool has_channel_codes(const PageDecoding& decoding) {
  if (decoding.layout.order != CodeOrder::planes || decoding.layout.bits != 4 || decoding.stored.symmetric)
    return false;
  if (decoding.encoding == Encoding::progressive) return !decoding.stored.as_printed;
  return decoding.encoding == Encoding::channel_grid && decoding.group == kPageTokens;
}

// Returns whether a head's values have 4-bit codes with grids by token.
template <int D>
bool has_token_codes(const PageDecoding& decoding) {
  return decoding.layout.order == CodeOrder::planes && decoding.layout.bits == 4 &&
         decoding.encoding == Encoding::token_grid && decoding.group >= D && !decoding.stored.symmetric;
}

// Describes the grid of a channel and kGridTokens tokens. Values are step * code + zero, and at most `most`.
struct ChannelGrid {
  float step, zero, most;
};

template <int D>
__device__ __forceinline__ ChannelGrid channel_grid(const PageDecoding& decoding, const unsigned char* page,
                                                    int channel, int block) {
  const unsigned char* parameters = page + code_bytes(decoding.layout, D);
  if (decoding.encoding == Encoding::channel_grid) {
    const auto* scales = reinterpret_cast<const __half*>(parameters);
    const float step = __half2float(__ldg(scales + channel)),
                zero = __half2float(__ldg(scales + D + channel));
    return {step, zero, fmaf(kLargestCode, step, zero)};
  }
  const unsigned char* steps = parameters + block * D + channel;
  constexpr int kBlocks = kPageTokens / kGridTokens;
  const float scale = __ldg(reinterpret_cast<const float*>(parameters + 2 * kBlocks * D) + block);
  const auto step = static_cast<float>(__ldg(steps));
  const auto zero = static_cast<float>(__ldg(reinterpret_cast<const signed char*>(steps) + kBlocks * D));
  return {step * scale, zero * scale, fminf(fmaf(kLargestCode, step, zero), kByteMax) * scale};
}

// Holds the numbers that convert codes to INT8: a product, a sum and an upper limit per channel. The factors
// come from the grid's step and zero, the channel's centre and the tile's scale.
template <int D>
struct CodeFactors {
  static constexpr int kBlocks = kPageTokens / kGridTokens;
  __align__(16) __half product[kBlocks][D];
  __align__(16) __half sum[kBlocks][D];
  __align__(16) __half limit[kBlocks][D];
};

__device__ __forceinline__ __half2 half2_of(std::uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}

// Returns the codes at bits `shift` and shift + 16 of a word as INT8 values that are not yet rounded.
__device__ __forceinline__ __half2 scaled_codes(std::uint32_t word, int shift, __half2 product, __half2 sum,
                                                __half2 limit) {
  const __half2 codes =
      // With 0x6400 above it, a code is the half-precision number 1024 + code.
      __hsub2(half2_of((word >> shift & 0x000f000f) | 0x64006400), half2_of(0x64006400));
  return __hmin2(__hfma2(codes, product, sum), limit);
}
// Half-precision numbers above 1024 are integers. Adding 1536, or 1536 + 128, puts integers from -127 to 127
// into the low bytes.
inline constexpr std::uint32_t kKeyRounder = 0x66006600, kValueRounder = 0x66806680;
__device__ __forceinline__ std::uint32_t round_to_bytes(__half2 x, std::uint32_t rounder) {
  const __half2 rounded = __hadd2(x, half2_of(rounder));
  return *reinterpret_cast<const std::uint32_t*>(&rounded);
}

// load_fragments() loads a piece of 4 MMA fragments of a lane, which are consecutive in the page. word_of()
// selects a word of the piece.
__device__ __forceinline__ uint4 load_fragments(const unsigned char* page, int fragment, int lane) {
  return __ldg(reinterpret_cast<const uint4*>(page) + fragment / 4 * kLanes + lane);
}
__device__ __forceinline__ std::uint32_t word_of(const uint4& piece, int i) {
  return i == 0 ? piece.x : i == 1 ? piece.y : i == 2 ? piece.z : piece.w;
}

// Holds the codes of a thread, which are four pieces of a block of tokens. A word of a page has 8 codes: four
// channels of two tokens for keys, and four tokens of two channels for values (page_layout.h). A warp has 64
// tokens of 64 channels.
template <int D>
struct ThreadCodes {
  int block, part;  // block of tokens, and part of each lane's channels
  int lane;
  uint4 pieces[4];

  __device__ __forceinline__ ThreadCodes(const unsigned char* page, bool is_value, int thread)
      : block(thread / kLanes % 2), part(thread / kLanes / 2), lane(thread % kLanes) {
    constexpr int kTokenTilesOfBlock = kGridTokens / 16;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      pieces[i] = load_fragments(page,
                                 is_value ? (block * kTokenTilesOfBlock + i) * (D / 16) + 4 * part
                                          : (4 * part + i) * kTokenTiles + block * kTokenTilesOfBlock,
                                 lane);
  }
  // Makes the compiler unpack codes again after this call, because unpacked numbers would take most
  // registers.
  __device__ __forceinline__ void forget_unpacked() {
#pragma unroll
    for (uint4& piece : pieces) asm volatile("" : "+r"(piece.x), "+r"(piece.y), "+r"(piece.z), "+r"(piece.w));
  }
  // first_key_channel() returns the first of 16 consecutive channels, and first_value_channel() returns the
  // first of 8 consecutive channels.
  __device__ __forceinline__ int first_key_channel() const {
    return lane % 4 * (D / 4) + 16 * part;
  }
  __device__ __forceinline__ int first_value_channel() const {
    return lane / 4 * (D / 8) + 8 * part;
  }
};

// Holds 8 factors that are loaded as 16 bytes.
struct EightHalves {
  __half2 pairs[4];
  __device__ __forceinline__ explicit EightHalves(const __half* from) {
    const uint4 packed = *reinterpret_cast<const uint4*>(from);
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = half2_of(word_of(packed, i));
  }
  // Returns factor i in both halves.
  __device__ __forceinline__ __half2 both(int i) const {
    return i % 2 == 0 ? __low2half2(pairs[i / 2]) : __high2half2(pairs[i / 2]);
  }
};

// Visits a thread's keys, which are 16 channels of Tokens tokens from first_token on. Calls body(token, k, j,
// x), where x holds channels 4 k + 2 j and 4 k + 2 j + 1.
template <int D, int Tokens = 8, class Body>
__device__ __forceinline__ void for_each_key(const ThreadCodes<D>& codes, const CodeFactors<D>& factors,
                                             const Body& body, int first_token = 0) {
  const int first = codes.first_key_channel();
#pragma unroll
  for (int k = 0; k < 4; k += 2) {
    const EightHalves product(&factors.product[codes.block][first + 4 * k]);
    const EightHalves sum(&factors.sum[codes.block][first + 4 * k]);
    const EightHalves limit(&factors.limit[codes.block][first + 4 * k]);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      // Each MMA fragment has two tokens.
      for (int token = first_token; token < first_token + Tokens; ++token)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          body(token, k + i, j,
               scaled_codes(word_of(codes.pieces[k + i], token / 2), 8 * j + 4 * (token % 2),
                            product.pairs[2 * i + j], sum.pairs[2 * i + j], limit.pairs[2 * i + j]));
  }
}

// Stores a thread's keys as signed bytes of the tile.
template <class Tile, int D>
__device__ __forceinline__ void store_keys(const ThreadCodes<D>& codes, const CodeFactors<D>& factors,
                                           unsigned char* tile) {
  // Registers can hold this many tokens at a time.
  constexpr int kTogether = 4;
#pragma unroll
  for (int first = 0; first < 8; first += kTogether) {
    std::uint32_t words[kTogether][4] = {};  // [token][four channels]
    const auto put = [&](int token, int k, int j, __half2 x) {
      const std::uint32_t bytes = round_to_bytes(x, kKeyRounder);
      std::uint32_t& word = words[token - first][k];
      word = j == 0 ? bytes : __byte_perm(word, bytes, 0x6420);
    };
    for_each_key<D, kTogether>(codes, factors, put, first);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int row = codes.block * kGridTokens + first / 4 * 32 + codes.lane / 4 * 4 + i;
      *reinterpret_cast<uint4*>(tile + Tile::key_place(row, codes.first_key_channel())) =
          make_uint4(words[i][0], words[i][1], words[i][2], words[i][3]);
    }
  }
}

// Stores the bytes of a channel for a thread's 8 consecutive tokens, from `byte` on in the channel's row.
// Bytes have the order of value_token(), which is two tokens of a lane with an even t, then two tokens of the
// next lane.
template <class Tile>
__device__ __forceinline__ void store_value_bytes(unsigned char* tile, int channel, int byte,
                                                  std::uint32_t low, std::uint32_t high, bool is_odd) {
  const std::uint32_t got = __shfl_xor_sync(~0U, is_odd ? low : high, 1);
  const std::uint32_t of_even = is_odd ? got : low, of_odd = is_odd ? high : got;
  *reinterpret_cast<uint2*>(tile + Tile::value_place(channel, byte)) =
      make_uint2(__byte_perm(of_even, of_odd, 0x5410), __byte_perm(of_even, of_odd, 0x7632));
}

// Visits a thread's values with grids by channel. The values are 8 channels of 8 consecutive tokens out of
// each 32. Calls body(a, channel, i, j, x), where x holds tokens 2 i + j and 2 i + j + 4 of group a of
// tokens.
template <int D, class Body>
__device__ __forceinline__ void for_each_value(const ThreadCodes<D>& codes, const CodeFactors<D>& factors,
                                               const Body& body) {
  const int first = codes.first_value_channel();
  const EightHalves product(&factors.product[codes.block][first]);
  const EightHalves sum(&factors.sum[codes.block][first]);
  const EightHalves limit(&factors.limit[codes.block][first]);
#pragma unroll
  for (int a = 0; a < 2; ++a)
#pragma unroll
    for (int channel = 0; channel < 8; ++channel)
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          body(a, channel, i, j,
               scaled_codes(word_of(codes.pieces[2 * a + i], channel / 2), 8 * j + 4 * (channel % 2),
                            product.both(channel), sum.both(channel), limit.both(channel)));
}

// Stores a thread's values with grids by channel as unsigned bytes of the tile.
template <class Tile, int D>
__device__ __forceinline__ void store_values(const ThreadCodes<D>& codes, const CodeFactors<D>& factors,
                                             unsigned char* tile) {
  const int t = codes.lane % 4;
  std::uint32_t pairs[2][2];  // [i][j]
  for_each_value<D>(codes, factors, [&](int a, int channel, int i, int j, __half2 x) {
    pairs[i][j] = round_to_bytes(x, kValueRounder);
    if (i == 0 || j == 0) return;
    // `even` has tokens 0, 1, 4 and 5, and `odd` has tokens 2, 3, 6 and 7.
    const std::uint32_t even = __byte_perm(pairs[0][0], pairs[0][1], 0x6240);
    const std::uint32_t odd = __byte_perm(pairs[1][0], pairs[1][1], 0x6240);
    store_value_bytes<Tile>(tile, codes.first_value_channel() + channel,
                            codes.block * kGridTokens + a * 32 + t * 8, __byte_perm(even, odd, 0x5410),
                            __byte_perm(even, odd, 0x7632), t % 2 != 0);
  });
}

// Holds the grids of a thread's 8 tokens in group a of 32 tokens of the block, one grid per token.
template <int D>
struct TokenGrids {
  float step[8], zero[8];

  __device__ __forceinline__ TokenGrids(const PageDecoding& decoding, const unsigned char* page,
                                        const ThreadCodes<D>& codes, int a) {
    const auto* steps = reinterpret_cast<const __half*>(page + code_bytes(decoding.layout, D)) +
                        codes.block * kGridTokens + a * 32 + codes.lane % 4 * 8;
    const uint4 of_steps = __ldg(reinterpret_cast<const uint4*>(steps));
    const uint4 of_zeros = __ldg(reinterpret_cast<const uint4*>(steps + kPageTokens));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two_steps = __half22float2(half2_of(word_of(of_steps, i)));
      const float2 two_zeros = __half22float2(half2_of(word_of(of_zeros, i)));
      step[2 * i] = two_steps.x;
      step[2 * i + 1] = two_steps.y;
      zero[2 * i] = two_zeros.x;
      zero[2 * i + 1] = two_zeros.y;
    }
  }
  // Returns the value of a token and channel, which are counted within the thread's share.
  __device__ __forceinline__ float value(const ThreadCodes<D>& codes, int a, int channel, int token) const {
    const std::uint32_t word = word_of(codes.pieces[2 * a + token % 4 / 2], channel / 2);
    const std::uint32_t code = word >> (token / 4 * 16 + token % 2 * 8 + channel % 2 * 4) & 15;
    // The bits of 2^23 with a code added are the number 2^23 + code.
    return fmaf(__uint_as_float(code | 0x4b000000) - 0x1p23F, step[token], zero[token]);
  }
};

// Stores a thread's values if grids are by token, with the arithmetic of quantize_tiles_kernel. Returns the
// tile's scale.
template <class Tile, int D>
__device__ __forceinline__ float store_token_grid_values(const PromptArgs& args, const PageDecoding& decoding,
                                                         const unsigned char* page, const TileAt& at,
                                                         ThreadCodes<D>& codes,
                                                         std::uint32_t (&maxima)[D / kLanes],
                                                         unsigned char* tile) {
  const int t = codes.lane % 4;
  const int first_channel = codes.first_value_channel();
  const TokenGrids<D> grids[2] = {{decoding, page, codes, 0}, {decoding, page, codes, 1}};
  // The kernels before this one compute the ranges of channels.
  wait_for_predecessors();
  const float* channels =
      args.channels + (std::int64_t{at.seq} * args.n_kv_heads + at.head) * 3 * D + D + first_channel;
  float centre[8], inverse[8];
  load_eight(channels, centre);
  load_reciprocals(channels + D, inverse);
  float largest = 0;
#pragma unroll
  for (int a = 0; a < 2; ++a)
#pragma unroll
    for (int channel = 0; channel < 8; ++channel)
#pragma unroll
      for (int token = 0; token < 8; ++token)
        largest = fmaxf(
            largest, fabsf((grids[a].value(codes, a, channel, token) - centre[channel]) * inverse[channel]));
  codes.forget_unpacked();
  const float scale = fmaxf(largest_of_cta(largest, maxima), kLeastReach) / kByteMax;
  const float of_scale = 1 / scale;
#pragma unroll
  for (int i = 0; i < 8; ++i) inverse[i] *= of_scale;
#pragma unroll
  for (int a = 0; a < 2; ++a) {
#pragma unroll
    for (int channel = 0; channel < 8; ++channel) {
      // The low byte is the rounded number plus kByteCentre.
      std::uint32_t bits[8];
#pragma unroll
      for (int token = 0; token < 8; ++token)
        bits[token] = __float_as_uint(fmaf(grids[a].value(codes, a, channel, token) - centre[channel],
                                           inverse[channel], 0x1.8p23F + kByteCentre));
      store_value_bytes<Tile>(tile, first_channel + channel, codes.block * kGridTokens + a * 32 + t * 8,
                              join_low_bytes(bits[0], bits[1], bits[2], bits[3]),
                              join_low_bytes(bits[4], bits[5], bits[6], bits[7]), t % 2 != 0);
    }
  }
  return scale;
}

// Prepares the factors of a tile's codes if grids are by channel. Thread i has channel i. The ends of the
// grids bound a tile's values, but values need not reach the ends. A first pass over the codes therefore
// finds the tile's scale.
template <int D>
struct ChannelGrids {
  static constexpr int kBlocks = kPageTokens / kGridTokens;
  // After lose_centre(), these grids are relative to the channel's centre. Grids of values are then also in
  // units of the channel's scale.
  ChannelGrid grids[kBlocks];
  float scale;  // scale of the tile

  __device__ __forceinline__ ChannelGrids(const PageDecoding& decoding, const unsigned char* page) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      grids[block] = channel_grid<D>(decoding, page, static_cast<int>(threadIdx.x), block);
  }
  // Subtracts the channel's centre, and divides grids of values by the channel's scale.
  __device__ __forceinline__ void lose_centre(const PromptArgs& args, const TileAt& at) {
    const float* channel =
        args.channels + (std::int64_t{at.seq} * args.n_kv_heads + at.head) * 3 * D + threadIdx.x;
    const float centre = channel[at.is_value ? D : 0];
    const float inverse = at.is_value ? 1 / channel[2 * D] : 1;
#pragma unroll
    for (ChannelGrid& grid : grids)
      grid = {grid.step * inverse, (grid.zero - centre) * inverse, (grid.most - centre) * inverse};
  }
  // Returns the largest magnitude at the ends of the grids.
  __device__ __forceinline__ float end() const {
    float end = 0;
#pragma unroll
    for (const ChannelGrid& grid : grids) end = fmaxf(end, fmaxf(fabsf(grid.zero), fabsf(grid.most)));
    return end;
  }
  // Sets the factors for a tile whose largest magnitude is `largest`.
  __device__ __forceinline__ void put_factors(float largest, CodeFactors<D>& factors) {
    scale = fmaxf(largest, kLeastReach) / kByteMax;
    const float inverse = 1 / scale;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      factors.product[block][threadIdx.x] = __float2half_rn(grids[block].step * inverse);
      factors.sum[block][threadIdx.x] = __float2half_rn(grids[block].zero * inverse);
      factors.limit[block][threadIdx.x] = __float2half_rn(grids[block].most * inverse);
    }
    __syncthreads();
  }
};

// Returns the largest magnitude of a thread's numbers.
template <int D>
__device__ __forceinline__ float largest_of_codes(const ThreadCodes<D>& codes, const CodeFactors<D>& factors,
                                                  bool is_value) {
  __half2 largest = half2_of(0);
  const auto look = [&](int, int, int, __half2 x) { largest = __hmax2(largest, __habs2(x)); };
  if (is_value) {
    for_each_value<D>(codes, factors,
                      [&](int a, int channel, int, int j, __half2 x) { look(a, channel, j, x); });
  } else {
    for_each_key<D>(codes, factors, look);
  }
  return __half2float(__hmax(__low2half(largest), __high2half(largest)));
}

// Stores a thread's part of a tile if grids are by channel. Returns the tile's scale.
template <class Tile, int D>
__device__ __forceinline__ float store_channel_grids(const PromptArgs& args, const PageDecoding& decoding,
                                                     const unsigned char* page, const TileAt& at,
                                                     ThreadCodes<D>& codes, CodeFactors<D>& factors,
                                                     std::uint32_t (&maxima)[D / kLanes],
                                                     unsigned char* tile) {
  ChannelGrids<D> grids(decoding, page);
  // The kernels before this one compute the ranges of channels.
  wait_for_predecessors();
  grids.lose_centre(args, at);
  grids.put_factors(largest_of_cta(grids.end(), maxima), factors);
  const float reached = largest_of_cta(largest_of_codes<D>(codes, factors, at.is_value), maxima);
  codes.forget_unpacked();
  grids.put_factors(reached * grids.scale, factors);
  if (at.is_value) {
    store_values<Tile, D>(codes, factors, tile);
  } else {
    store_keys<Tile, D>(codes, factors, tile);
  }
  return grids.scale;
}

// Makes the tile of a slot of sealed pages with D threads. The grid is [sides from first_side on][KV
// heads][slots]. With OfTokens the grids of some heads are by token, which needs more registers.
template <class Tile, int D, bool OfTokens>
__global__ void __launch_bounds__(D, (OfTokens ? 640 : 1024) / D)
    code_tiles_kernel(const __grid_constant__ PromptArgs args, const __grid_constant__ DequantizeArgs pages,
                      int first_side) {
  __shared__ CodeFactors<D> factors;
  __shared__ std::uint32_t maxima[D / kLanes];
  admit_successors();
  const int slot = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int side = first_side + static_cast<int>(blockIdx.z);
  const bool is_value = side != 0;
  TileAt at;
  int first_token;
  if (!find_tile(args, slot, head, is_value, &at, &first_token) || (pages.sink > 0 && at.number == 0)) {
    // The next kernel waits only for this kernel.
    wait_for_predecessors();
    return;
  }
  const PageDecoding& decoding = pages.decodings[pages.decoding_of_head[head]][side];
  const unsigned char* page = pages.sealed.find(at.seq, head, side, at.number);
  ThreadCodes<D> codes(page, is_value, static_cast<int>(threadIdx.x));
  unsigned char* tile = tile_of_slot<Tile>(args, slot, head);
  const float scale =
      OfTokens && decoding.encoding == Encoding::token_grid
          ? store_token_grid_values<Tile, D>(args, decoding, page, at, codes, maxima, tile)
          : store_channel_grids<Tile, D>(args, decoding, page, at, codes, factors, maxima, tile);
  if (threadIdx.x == 0) put_note<Tile>(tile, at, first_token, scale);
}

}  // namespace kvant::cuda
