// Decodes values of a sealed page in shared memory, with the arithmetic of src/format. A thread decodes eight
// neighbouring channels of a token at a time, which fill 16 bytes of BF16. Any format can be decoded. Common
// formats have decoders of their own. Decoders of channel grids and of trellis codes first look up the
// parameters that all of a thread's tokens share.
#pragma once

#include <cuda_fp16.h>

#include "device/cuda/common/ptx.cuh"
#include "device/cuda/page/trellis_parameters.cuh"
#include "device/cuda/rows/dequantize_args.h"
#include "device/cuda/seal/seal_page.cuh"
#include "format/trellis_gain.h"

namespace kvant::cuda {

// This many channels are decoded together. As BF16, they fill 16 bytes.
inline constexpr int kOctet = 8;

// Describes a sealed page and its decoding, with pointers to tables in shared memory.
struct SealedPage {
  const std::uint32_t* words;  // address in shared memory
  const float* levels;         // address in shared memory
  const PageDecoding& decoding;
  // Points to the codebook of the page's KV head.
  const __half* centroids;

  template <int D>
  __device__ const unsigned char* parameters() const {
    return reinterpret_cast<const unsigned char*>(words) + code_bytes(decoding.layout, D);
  }
};

// Holds eight half-precision numbers as F32 numbers.
struct HalfOctet {
  float x[kOctet];
  __device__ explicit HalfOctet(const __half* from) {
    const uint4 packed = *reinterpret_cast<const uint4*>(from);
    const std::uint32_t words[] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
      x[2 * i] = pair.x;
      x[2 * i + 1] = pair.y;
    }
  }
};

// Reads the codes of eight channels. There is one code for each `layout.channels` channels, which is 1 except
// for vectors.
template <PageSide Side, int D>
__device__ __forceinline__ void read_octet(const std::uint32_t* words, const CodeLayout& layout, int token,
                                           int octet, std::uint32_t (&codes)[kOctet]) {
  const BlockChannel first = block_channel(Side, D, octet * kOctet);
  words += first.block * (code_bytes(layout, block_dim(D)) / 4);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    if (i * layout.channels >= kOctet) break;
    const Place place = sealed_place(Side, block_dim(D), token, first.channel + i * layout.channels);
    const int bit = stream_bit(layout, Side, block_dim(D), place);
    const int at = page_bit(place.lane, bit);
    std::uint32_t code = words[at / 32] >> (at % 32);
    if (at % 32 + layout.bits > 32)
      code |= words[page_bit(place.lane, bit / 32 * 32 + 32) / 32] << (32 - at % 32);
    codes[i] = code & ((1U << layout.bits) - 1);
  }
}

// Reads codes as read_octet() does, with compile-time constants for common layouts.
template <PageSide Side, int D>
__device__ __forceinline__ void read_codes(const std::uint32_t* words, const CodeLayout& layout, int token,
                                           int octet, std::uint32_t (&codes)[kOctet]) {
  switch (layout.order) {
    case CodeOrder::planes:
      if (layout.bits == 4) return read_octet<Side, D>(words, {CodeOrder::planes, 4, 1}, token, octet, codes);
      if (layout.bits == 2) return read_octet<Side, D>(words, {CodeOrder::planes, 2, 1}, token, octet, codes);
#pragma unroll
      for (int i = 0; i < kOctet; ++i)
        codes[i] = load_code<D>(words, layout, Side, token, octet * kOctet + i);
      return;
    case CodeOrder::pairs:
      return read_octet<Side, D>(words, {CodeOrder::pairs, layout.bits, 1}, token, octet, codes);
    case CodeOrder::quads:
      return read_octet<Side, D>(words, {CodeOrder::quads, 2, 1}, token, octet, codes);
    case CodeOrder::vectors:
      if (layout.channels == 2)
        return read_octet<Side, D>(words, {CodeOrder::vectors, layout.bits, 2}, token, octet, codes);
      if (layout.channels == 4)
        return read_octet<Side, D>(words, {CodeOrder::vectors, layout.bits, 4}, token, octet, codes);
      return read_octet<Side, D>(words, {CodeOrder::vectors, layout.bits, 8}, token, octet, codes);
    case CodeOrder::trellis:
      break;
  }
}

// The functions from decode_channel_grid() to decode_trellis() turn the codes of eight channels of a token
// into values. Each function serves one encoding.
template <int D>
__device__ __forceinline__ void decode_channel_grid(const SealedPage& page, int token, int octet,
                                                    const std::uint32_t (&codes)[kOctet],
                                                    float (&values)[kOctet]) {
  const int groups = kPageTokens / page.decoding.group;
  const auto* scales = reinterpret_cast<const __half*>(page.parameters<D>()) +
                       token / page.decoding.group * D + octet * kOctet;
  const HalfOctet scale(scales);
  const HalfOctet zero(scales + groups * D);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) values[i] = static_cast<float>(codes[i]) * scale.x[i] + zero.x[i];
}

template <int D>
__device__ __forceinline__ void decode_token_grid(const SealedPage& page, int token, int octet,
                                                  const std::uint32_t (&codes)[kOctet],
                                                  float (&values)[kOctet]) {
  const int group = min(page.decoding.group, D);
  const int groups = (D + group - 1) / group;
  const auto* scales =
      reinterpret_cast<const __half*>(page.parameters<D>()) + token * groups + octet * kOctet / group;
  const int bits = page.decoding.layout.bits;
  float scale = __half2float(scales[0]);
  float zero = 0;
  if (page.decoding.stored.symmetric) {
    zero = -scale * static_cast<float>(1 << (bits - 1));
    if (bits == 1) scale *= 2;
  } else {
    zero = __half2float(scales[kPageTokens * groups]);
  }
#pragma unroll
  for (int i = 0; i < kOctet; ++i) values[i] = static_cast<float>(codes[i]) * scale + zero;
}

template <int D>
__device__ __forceinline__ void decode_e4m3(const SealedPage& page, int token,
                                            const std::uint32_t (&codes)[kOctet], float (&values)[kOctet]) {
  const float scale = reinterpret_cast<const float*>(page.parameters<D>())[token];
#pragma unroll
  for (int i = 0; i < kOctet; i += 2) {
    const float2 pair = unpack_half2(half2_from_e4m3(codes[i] | codes[i + 1] << 8));
    values[i] = pair.x * scale;
    values[i + 1] = pair.y * scale;
  }
}

template <int D>
__device__ __forceinline__ void decode_progressive(const SealedPage& page, int token, int octet,
                                                   const std::uint32_t (&codes)[kOctet],
                                                   float (&values)[kOctet]) {
  constexpr int kBlock = 64;
  const int block = token / kBlock;
  const unsigned char* steps = page.parameters<D>() + block * D + octet * kOctet;
  const auto* zeros = reinterpret_cast<const signed char*>(steps) + kPageTokens / kBlock * D;
  const float scale = reinterpret_cast<const float*>(page.parameters<D>() + 4 * D)[block];
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    const int zero = page.decoding.stored.as_printed ? zeros[i] * steps[i] : zeros[i];
    const float integer = static_cast<float>(codes[i]) * steps[i] + static_cast<float>(zero);
    values[i] = fminf(fmaxf(integer, -127), 127) * scale;
  }
}

template <int D>
__device__ __forceinline__ void decode_lloyd_max(const SealedPage& page, int token,
                                                 const std::uint32_t (&codes)[kOctet],
                                                 float (&values)[kOctet]) {
  const float gain = __half2float(reinterpret_cast<const __half*>(page.parameters<D>())[token]);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) values[i] = page.levels[codes[i]] * gain;
}

template <int Channels, int D>
__device__ __forceinline__ void decode_vectors(const SealedPage& page, int token, int octet,
                                               const std::uint32_t (&codes)[kOctet],
                                               float (&values)[kOctet]) {
  const PageFormat& stored = page.decoding.stored;
  const float gain = stored.factor == TokenFactor::half
                         ? __half2float(reinterpret_cast<const __half*>(page.parameters<D>())[token])
                         : 1;
#pragma unroll
  for (int i = 0; i < kOctet; i += 2) {
    const int vector = (octet * kOctet + i) / Channels;
    const int book = stored.own_codebooks ? vector << stored.layout.bits : 0;
    const auto* pairs =
        reinterpret_cast<const __half2*>(page.centroids + (book + codes[i / Channels]) * Channels);
    const float2 pair = __half22float2(__ldg(pairs + i % Channels / 2));
    values[i] = pair.x * gain;
    values[i + 1] = pair.y * gain;
  }
}

// Holds the parameters of a trellis-coded page for eight channels, which are the channels' means and the
// page's loudest gain.
template <int D>
struct TrellisOctet {
  float means[kOctet];
  float loudest;
  __device__ __forceinline__ TrellisOctet(const unsigned char* parameters, int octet)
      : loudest(loudest_gain<D>(parameters)) {
    const float step = mean_step<D>(parameters);
    const uint2 codes = *reinterpret_cast<const uint2*>(parameters + kTrellisMeansAt + octet * kOctet);
#pragma unroll
    for (int i = 0; i < kOctet; ++i)
      means[i] =
          static_cast<float>(static_cast<signed char>((i < 4 ? codes.x : codes.y) >> (i % 4 * 8))) * step;
  }
};

// Decodes eight channels of a token. With B bits per code, the eight codes are B bytes of the token's stream.
// The states of the first values begin in the preceding byte.
template <PageSide Side, int D>
__device__ __forceinline__ void decode_trellis(const SealedPage& page, const CodeLayout& layout,
                                               const TrellisOctet<D>& around, int token, int octet,
                                               float (&values)[kOctet]) {
  constexpr int kOctets = D / kOctet;
  const TrellisCode& code = page.decoding.trellis;
  const auto* bytes = reinterpret_cast<const unsigned char*>(page.words);
  const auto byte = [&](int of_octet, int i) -> std::uint64_t {
    return bytes[code_bit(layout, Side, D, token, of_octet * kOctet, 8 * i) / 8];
  };
  std::uint64_t stream = byte((octet + kOctets - 1) % kOctets, layout.bits - 1);
#pragma unroll
  for (int i = 0; i < kMaxTrellisBits; ++i)
    if (i < layout.bits) stream |= byte(octet, i) << (8 * (i + 1));
  const float gain =
      gain_of_code(page.parameters<D>()[token], around.loudest, [](float x) { return exp2f(x); });
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    const auto state = static_cast<std::uint32_t>(stream >> ((i + 1) * layout.bits)) & 0xff;
    const std::uint32_t mixed = state ^ state << code.mix;
    const std::uint32_t folded = (state << code.fold & code.fold_mask) | (mixed & ~code.fold_mask & 0xff);
    const int level = (static_cast<signed char>(mixed) + static_cast<signed char>(folded)) / 2;
    values[i] = around.means[i] + gain * (code.scale * static_cast<float>(level));
  }
}

// Decodes eight channels of a token in any format.
template <PageSide Side, int D>
__device__ __forceinline__ void decode_octet(const SealedPage& page, int token, int octet,
                                             float (&values)[kOctet]) {
  if (page.decoding.encoding == Encoding::trellis)
    return decode_trellis<Side, D>(page, page.decoding.layout, {page.parameters<D>(), octet}, token, octet,
                                   values);
  std::uint32_t codes[kOctet];
  read_codes<Side, D>(page.words, page.decoding.layout, token, octet, codes);
  switch (page.decoding.encoding) {
    case Encoding::channel_grid:
      return decode_channel_grid<D>(page, token, octet, codes, values);
    case Encoding::token_grid:
      return decode_token_grid<D>(page, token, octet, codes, values);
    case Encoding::e4m3:
      return decode_e4m3<D>(page, token, codes, values);
    case Encoding::progressive:
      return decode_progressive<D>(page, token, octet, codes, values);
    case Encoding::lloyd_max:
      return decode_lloyd_max<D>(page, token, codes, values);
    case Encoding::vectors:
      if (page.decoding.layout.channels == 2) return decode_vectors<2, D>(page, token, octet, codes, values);
      if (page.decoding.layout.channels == 4) return decode_vectors<4, D>(page, token, octet, codes, values);
      return decode_vectors<8, D>(page, token, octet, codes, values);
    case Encoding::trellis:
      return;
  }
}

// Decodes eight channels of the tokens of one page in any format. The decoders of common formats follow, up
// to TrellisOctets. ChannelGridOctets and TrellisOctets first look up the parameters that all tokens of a
// thread share.
template <PageSide Side, int D>
struct AnyOctets {
  // The compiler may interleave the instructions of this many tokens.
  static constexpr int kTogether = 1;
  const SealedPage& page;
  int octet;
  __device__ __forceinline__ void decode(int token, float (&values)[kOctet]) const {
    decode_octet<Side, D>(page, token, octet, values);
  }
};

// Reads codes of 2 or 4 bits in planes (page_layout.h) as numbers. A word has the codes of one or two MMA
// fragments. Eight channels are 4 codes each of two consecutive fragments for keys, and 2 codes each of four
// fragments for values.
template <PageSide Side, int D, int Bits>
__device__ __forceinline__ void read_numbers(const std::uint32_t* words, int token, int octet,
                                             float (&numbers)[kOctet]) {
  constexpr bool kKeys = Side == PageSide::key;
  constexpr unsigned kWordFragments = 4 / Bits;
  const BlockChannel of_octet = block_channel(Side, D, octet * kOctet);
  words += of_octet.block * (kPageTokens * block_dim(D) * Bits / 32);
  const Place first = sealed_place(Side, block_dim(D), token, of_octet.channel);
#pragma unroll
  for (unsigned i = 0; i < kOctet; ++i) {
    const unsigned k_tile = first.k_tile + (kKeys ? i / 4 : 0);
    const unsigned m_tile = first.m_tile + (kKeys ? 0 : i / 2);
    const unsigned j = kKeys ? i % 4 : first.j;
    const unsigned row = kKeys ? first.row : i % 2;
    const unsigned fragment = k_tile * (kKeys ? kTokenTiles : block_dim(D) / 16) + m_tile;
    const unsigned word = fragment / kWordFragments;
    const unsigned shift = j % 2 * 16 + j / 2 * 8 + (fragment % kWordFragments * 2 + row) * Bits;
    const std::uint32_t code =
        words[(word / 4 * kLanes + first.lane) * 4 + word % 4] >> shift & ((1U << Bits) - 1);
    numbers[i] = __uint_as_float(code | 0x4b000000) - 0x1p23F;  // the number 2^23 + code, minus 2^23
  }
}

// Decodes grids by channel with one grid for all tokens of a page.
template <PageSide Side, int D, int Bits>
struct ChannelGridOctets {
  static constexpr int kTogether = 4;
  const SealedPage& page;
  int octet;
  HalfOctet scale, zero;
  __device__ ChannelGridOctets(const SealedPage& of, int nth)
      : page(of),
        octet(nth),
        scale(reinterpret_cast<const __half*>(of.parameters<D>()) + nth * kOctet),
        zero(reinterpret_cast<const __half*>(of.parameters<D>()) + D + nth * kOctet) {}
  __device__ __forceinline__ void decode(int token, float (&values)[kOctet]) const {
    read_numbers<Side, D, Bits>(page.words, token, octet, values);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) values[i] = values[i] * scale.x[i] + zero.x[i];
  }
};

// Decodes grids by token with one grid for all channels.
template <PageSide Side, int D, int Bits>
struct TokenGridOctets {
  static constexpr int kTogether = 4;
  const SealedPage& page;
  int octet;
  __device__ __forceinline__ void decode(int token, float (&values)[kOctet]) const {
    const auto* scales = reinterpret_cast<const __half*>(page.parameters<D>()) + token;
    const float scale = __half2float(scales[0]);
    const float zero = __half2float(scales[kPageTokens]);
    read_numbers<Side, D, Bits>(page.words, token, octet, values);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) values[i] = values[i] * scale + zero;
  }
};

// Decodes `prog` formats. The grid of a channel and a block of 64 tokens yields integers, which the block's
// scale multiplies.
template <PageSide Side, int D, int Bits>
struct ProgressiveOctets {
  static constexpr int kTogether = 2;
  const SealedPage& page;
  int octet;
  __device__ __forceinline__ void decode(int token, float (&values)[kOctet]) const {
    constexpr int kBlock = 64;
    const int block = token / kBlock;
    const unsigned char* parameters = page.parameters<D>();
    const unsigned char* steps = parameters + block * D + octet * kOctet;
    const uint2 step = *reinterpret_cast<const uint2*>(steps);
    const uint2 zero = *reinterpret_cast<const uint2*>(steps + kPageTokens / kBlock * D);
    const float scale = reinterpret_cast<const float*>(parameters + 4 * D)[block];
    read_numbers<Side, D, Bits>(page.words, token, octet, values);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      // Adding 2^23 turns a byte into a number, as for codes. Signed bytes are first increased by 128.
      const auto number = [&](std::uint32_t word) {
        return __uint_as_float(__byte_perm(word, 0x4b000000, 0x7440 | i % 4));
      };
      const float of_step = number(i < 4 ? step.x : step.y) - 0x1p23F;
      const float of_zero = number((i < 4 ? zero.x : zero.y) ^ 0x80808080) - (0x1p23F + 128);
      values[i] = fminf(fmaxf(values[i] * of_step + of_zero, -127), 127) * scale;
    }
  }
};

// Decodes trellis codes of the common widths.
template <PageSide Side, int D, int Bits>
struct TrellisOctets {
  static constexpr int kTogether = 2;
  const SealedPage& page;
  int octet;
  TrellisOctet<D> around;
  __device__ TrellisOctets(const SealedPage& of, int nth)
      : page(of), octet(nth), around(of.parameters<D>(), nth) {}
  __device__ __forceinline__ void decode(int token, float (&values)[kOctet]) const {
    decode_trellis<Side, D>(page, {CodeOrder::trellis, Bits, 1}, around, token, octet, values);
  }
};

// Calls use(octets) with the decoder for the page's format.
template <PageSide Side, int D, class Use>
__device__ __forceinline__ void with_octets(const SealedPage& page, int octet, const Use& use) {
  const PageDecoding& decoding = page.decoding;
  const int bits = decoding.layout.bits;
  if (decoding.encoding == Encoding::channel_grid && decoding.group == kPageTokens && bits == 4)
    return use(ChannelGridOctets<Side, D, 4>(page, octet));
  if (decoding.encoding == Encoding::channel_grid && decoding.group == kPageTokens && bits == 2)
    return use(ChannelGridOctets<Side, D, 2>(page, octet));
  const bool by_token =
      decoding.encoding == Encoding::token_grid && decoding.group >= D && !decoding.stored.symmetric;
  if (by_token && bits == 4) return use(TokenGridOctets<Side, D, 4>{page, octet});
  if (by_token && bits == 2) return use(TokenGridOctets<Side, D, 2>{page, octet});
  const bool of_integers = decoding.encoding == Encoding::progressive && !decoding.stored.as_printed &&
                           decoding.layout.order == CodeOrder::planes;
  if (of_integers && bits == 4) return use(ProgressiveOctets<Side, D, 4>{page, octet});
  if (of_integers && bits == 2) return use(ProgressiveOctets<Side, D, 2>{page, octet});
  if (decoding.encoding == Encoding::trellis) {
    if (bits == 2) return use(TrellisOctets<Side, D, 2>(page, octet));
    if (bits == 3) return use(TrellisOctets<Side, D, 3>(page, octet));
    if (bits == 4) return use(TrellisOctets<Side, D, 4>(page, octet));
  }
  return use(AnyOctets<Side, D>{page, octet});
}

}  // namespace kvant::cuda
