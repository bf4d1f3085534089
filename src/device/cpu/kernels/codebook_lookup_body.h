// Implements codebook_lookup.h over a class `Centroids` of an instruction set. byte_kernels_body.h includes
// this header inside its namespace. Centroids has
//
//   store_quads<X>(codes, table, next_quad, to)  stores the centroids of 8 tokens in quads of channels, as
//                              to[quad * next_quad + token * 4 + channel]; codes(t) is the code of token t
//   store_octets<X>(codes, table, to)  stores the centroids of 8 tokens as to[channel][token]
//   store_pairs<Mix>(codes, page, to)  stores the centroids of 64 codes with 2 channels. For scores the codes
//                              are [16 tokens][4 groups] and become quads, to[group / 2][token][4]. For a mix
//                              they are [8 groups][8 tokens] and become to[group][channel][token].
#include "device/cpu/kernels/codebook_lookup.h"

// kQuad channels of a centroid, one byte each, are moved together.
constexpr int kQuad = 4;
// kOctetTokens tokens are looked up at the same time.
constexpr int kOctetTokens = 8;
constexpr int kScoreTokens = 16;  // tokens of a tile of scores
constexpr int kScoreGroups = 4;   // groups in a tile of byte codes for scores

// Reads code `Position` of 8 rows whose codes have `Bits` bits. Loading 16 bits of a row costs less than
// unpacking the row. A code is returned in 64 bits, which lets the processor scale it as part of an address.
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
  // Four codes fill whole bytes.
  constexpr int kCodes = 4;
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

// The codes lie in tiles of tokens and groups: [t / kTileTokens][g / kGroups][kTileTokens][kGroups].
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

// The 64 codes from code i on are a tile, and their 128 bytes begin at byte 2 * i.
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
