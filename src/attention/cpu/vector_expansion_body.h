// The functions of vector_expansion.h over an instruction set's `Centroids`, included as byte_kernels_body.h
// is. Centroids has
//   unpack<Bits>(from, end, n, out)  n codes, a multiple of 8; no byte at or after `end` is read
//   store_quads<X>(codes, stride, table, next_quad, to)  8 tokens, whose codes are `stride` apart:
//                              to[quad * next_quad + token * 4 + channel], quads of channels
//   store_octets<X>(codes, stride, table, to)  the same as to[channel][token]
#include "attention/cpu/vector_expansion.h"

constexpr int kQuad = 4;          // bytes that move together: channels of one centroid
constexpr int kOctetTokens = 8;   // that are looked up side by side
constexpr int kScoreTokens = 16;  // of a tile of scores
constexpr int kScoreGroups = 4;   // of a tile of a byte's codes for scores

// In 64 bits, so that scaling is part of the address.
template <int X>
KVANT_INLINE const std::uint8_t* centroid_of(std::uint64_t code, const std::uint8_t* table) {
  return table + code * X;
}

template <class Centroids, bool Mix, int X, class Code>
KVANT_INLINE void store_centroids(const Code* codes, std::ptrdiff_t stride, const std::uint8_t* table,
                                  std::uint8_t* to) {
  if constexpr (Mix) {
    Centroids::template store_octets<X>(codes, stride, table, to);
  } else {
    Centroids::template store_quads<X>(codes, stride, table, kScoreTokens * kQuad, to);
  }
}

template <class Centroids, bool Mix, int Bits, int X>
void expand_wide_codes(const kvant::cpu::WideCodes& page, std::uint8_t* out) {
  constexpr int kTileTokens = Mix ? kOctetTokens : kScoreTokens;
  const int row_codes = page.d / X, tile_codes = kTileTokens * row_codes;
  const std::ptrdiff_t tile_bytes = tile_codes * Bits / 8;
  const std::uint8_t* const end = page.codes + kvant::cpu::kTokens / kTileTokens * tile_bytes;
  std::uint16_t codes[kTileTokens * kvant::cpu::kMostChannels / X];
  for (const std::uint8_t* from = page.codes; from < end; from += tile_bytes, out += kTileTokens * page.d) {
    Centroids::template unpack<Bits>(from, end, tile_codes, codes);
    for (int t = 0; t < kTileTokens; t += kOctetTokens) {
      for (int i = 0; i < row_codes; ++i) {
        store_centroids<Centroids, Mix, X>(codes + t * row_codes + i, row_codes, page.table,
                                           out + t * kQuad + i * X * kTileTokens);
      }
    }
  }
}

template <class Centroids, bool Mix>
void expand_wide(const kvant::cpu::WideCodes& page, std::uint8_t* out) {
  if (page.bits == 12 && page.vector_channels == 4)
    return expand_wide_codes<Centroids, Mix, 12, 4>(page, out);
  if (page.bits == 12) return expand_wide_codes<Centroids, Mix, 12, 8>(page, out);
  if (page.vector_channels == 4) return expand_wide_codes<Centroids, Mix, 10, 4>(page, out);
  expand_wide_codes<Centroids, Mix, 10, 8>(page, out);
}

// Of tiles of tokens and groups side by side: [t / kTileTokens][g / kGroups][kTileTokens][kGroups].
template <class Centroids, bool Mix, int X>
void expand_byte_codes(const kvant::cpu::ByteCodes& page, std::uint8_t* out) {
  constexpr int kTileTokens = Mix ? kOctetTokens : kScoreTokens, kGroups = Mix ? 1 : kScoreGroups;
  const int n_tiles = kvant::cpu::kTokens / kTileTokens * (page.d / X / kGroups);
  const std::uint8_t* codes = page.codes;
  for (int tile = 0; tile < n_tiles; ++tile, codes += kTileTokens * kGroups) {
    for (int g = 0; g < kGroups; ++g, out += kTileTokens * X) {
      for (int t = 0; t < kTileTokens; t += kOctetTokens)
        store_centroids<Centroids, Mix, X>(codes + t * kGroups + g, kGroups, page.table, out + t * kQuad);
    }
  }
}

template <class Centroids, bool Mix>
void expand_bytes(const kvant::cpu::ByteCodes& page, std::uint8_t* out) {
  if (page.vector_channels == 4) return expand_byte_codes<Centroids, Mix, 4>(page, out);
  expand_byte_codes<Centroids, Mix, 8>(page, out);
}

template <class Centroids>
constexpr kvant::cpu::VectorExpansion expansion_of() {
  return {.wide_for_scores = expand_wide<Centroids, false>,
          .bytes_for_scores = expand_bytes<Centroids, false>,
          .wide_for_mix = expand_wide<Centroids, true>,
          .bytes_for_mix = expand_bytes<Centroids, true>};
}
