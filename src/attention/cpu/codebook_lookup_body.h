// The functions of codebook_lookup.h over an instruction set's `Centroids`, included as byte_kernels_body.h
// is. Centroids has
//   store_quads<X>(codes, table, next_quad, to)  those of 8 tokens, codes(t) the code of token t:
//                              to[quad * next_quad + token * 4 + channel], quads of channels
//   store_octets<X>(codes, table, to)  the same as to[channel][token]
//   store_pairs<Mix>(codes, page, to)  the centroids of 2 channels of 64 codes side by side: for scores those
//                              of [16 tokens][4 groups] as quads, to[group / 2][token][4], for a mix those
//                              of [8 groups][8 tokens] as to[group][channel][token]
#include "attention/cpu/codebook_lookup.h"

constexpr int kQuad = 4;          // bytes that move together: channels of one centroid
constexpr int kOctetTokens = 8;   // that are looked up side by side
constexpr int kScoreTokens = 16;  // of a tile of scores
constexpr int kScoreGroups = 4;   // of a tile of a byte's codes for scores

// Codes in 64 bits, so that scaling them is part of an address.
// Code `Position` of 8 rows of codes of `Bits` bits. Loading 16 bits of a row costs less than unpacking it.
template <int Bits, int Position>
struct RowCodes {
  static constexpr int kByte = Position * Bits / 8, kShift = Position * Bits % 8;
  static_assert(kShift + Bits <= 16);
  const std::uint8_t* rows;
  std::ptrdiff_t row_bytes;
  KVANT_INLINE std::uint64_t operator()(int t) const {
    std::uint16_t bits;
    __builtin_memcpy(&bits, rows + t * row_bytes + kByte, sizeof bits);
    return static_cast<std::uint64_t>(bits) >> kShift & ((1U << Bits) - 1);
  }
};

template <int Stride>
struct TileCodes {
  const std::uint8_t* codes;
  KVANT_INLINE std::uint64_t operator()(int t) const { return codes[t * Stride]; }
};

template <class Centroids, bool Mix, int X, class Codes>
KVANT_INLINE void store_centroids(const Codes& codes, const std::uint8_t* table, std::uint8_t* to) {
  if constexpr (Mix) {
    Centroids::template store_octets<X>(codes, table, to);
  } else {
    Centroids::template store_quads<X>(codes, table, kScoreTokens * kQuad, to);
  }
}

template <class Centroids, bool Mix, int Bits, int X>
void look_up_wide_codes(const kvant::cpu::WideCodes& page, std::uint8_t* out) {
  constexpr int kTileTokens = Mix ? kOctetTokens : kScoreTokens;
  constexpr int kCodes = 4;  // whole bytes
  const int row_codes = page.d / X;
  const std::ptrdiff_t row_bytes = row_codes * Bits / 8;
  for (int token = 0; token < kvant::cpu::kPageTokens; token += kOctetTokens) {
    const std::uint8_t* rows = page.codes + token * row_bytes;
    std::uint8_t* to = out + (token - token % kTileTokens) * page.d + token % kTileTokens * kQuad;
    for (int i = 0; i < row_codes; i += kCodes, rows += kCodes * Bits / 8) {
      unroll<kCodes>([&](auto position) __attribute__((always_inline)) {
        const RowCodes<Bits, decltype(position)::value> codes{rows, row_bytes};
        store_centroids<Centroids, Mix, X>(codes, page.table, to);
        to += X * kTileTokens;
      });
    }
  }
}

template <class Centroids, bool Mix>
void look_up_wide(const kvant::cpu::WideCodes& page, std::uint8_t* out) {
  if (page.bits == 12 && page.vector_channels == 4)
    return look_up_wide_codes<Centroids, Mix, 12, 4>(page, out);
  if (page.bits == 12) return look_up_wide_codes<Centroids, Mix, 12, 8>(page, out);
  if (page.vector_channels == 4) return look_up_wide_codes<Centroids, Mix, 10, 4>(page, out);
  look_up_wide_codes<Centroids, Mix, 10, 8>(page, out);
}

// Of tiles of tokens and groups side by side: [t / kTileTokens][g / kGroups][kTileTokens][kGroups].
template <class Centroids, bool Mix, int X>
void look_up_byte_codes(const kvant::cpu::ByteCodes& page, std::uint8_t* out) {
  constexpr int kTileTokens = Mix ? kOctetTokens : kScoreTokens, kGroups = Mix ? 1 : kScoreGroups;
  const int n_tiles = kvant::cpu::kPageTokens / kTileTokens * (page.d / X / kGroups);
  const std::uint8_t* codes = page.codes;
  for (int tile = 0; tile < n_tiles; ++tile, codes += kTileTokens * kGroups) {
    for (int g = 0; g < kGroups; ++g, out += kTileTokens * X) {
      for (int t = 0; t < kTileTokens; t += kOctetTokens)
        store_centroids<Centroids, Mix, X>(TileCodes<kGroups>{codes + t * kGroups + g}, page.centroids,
                                           out + t * kQuad);
    }
  }
}

// Tiles of 64 codes end where those of their bytes do.
template <class Centroids, bool Mix>
void look_up_pairs(const kvant::cpu::ByteCodes& page, std::uint8_t* out) {
  constexpr int kCodes = 64;
  for (int i = 0; i < kvant::cpu::kPageTokens * page.d / 2; i += kCodes)
    Centroids::template store_pairs<Mix>(page.codes + i, page, out + 2 * i);
}

template <class Centroids, bool Mix>
void look_up_bytes(const kvant::cpu::ByteCodes& page, std::uint8_t* out) {
  if (page.vector_channels == 2) return look_up_pairs<Centroids, Mix>(page, out);
  if (page.vector_channels == 4) return look_up_byte_codes<Centroids, Mix, 4>(page, out);
  look_up_byte_codes<Centroids, Mix, 8>(page, out);
}

template <class Centroids>
constexpr kvant::cpu::CodebookLookup codebook_lookup_of() {
  return {.wide_for_scores = look_up_wide<Centroids, false>,
          .bytes_for_scores = look_up_bytes<Centroids, false>,
          .wide_for_mix = look_up_wide<Centroids, true>,
          .bytes_for_mix = look_up_bytes<Centroids, true>};
}
