#include "attention/cpu/wide_codes.h"

#include <cstring>

#include "base/check.h"
#include "base/geometry.h"
#include "base/simd_clones.h"
#include "format/code_order.h"

namespace kvant::cpu {
namespace {

constexpr int kQuad = 4;   // bytes that move together: channels of one centroid
constexpr int kCodes = 4;  // read together: whole bytes, and within two words of 4 bytes

template <class Word>
inline Word load(const std::uint8_t* from) {
  Word word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

template <int Bits>
inline void read_codes(const std::uint8_t* from, std::uint32_t (&codes)[kCodes]) {
  constexpr std::uint32_t kMask = (1U << Bits) - 1;
  constexpr int kBytes = kCodes * Bits / 8;
  const auto first = load<std::uint32_t>(from), last = load<std::uint32_t>(from + kBytes - 4);
  codes[0] = first & kMask;
  codes[1] = first >> Bits & kMask;
  codes[2] = last >> (32 - 2 * Bits) & kMask;
  codes[3] = last >> (32 - Bits);
}

// The quads of two centroids, side by side.
template <int X>
inline void store_quads(const std::uint8_t* a, const std::uint8_t* b, std::ptrdiff_t next_quad,
                        std::uint8_t* to) {
  for (int quad = 0; quad < X / kQuad; ++quad, to += next_quad) {
    const std::uint64_t both = load<std::uint32_t>(a + quad * kQuad) |
                               static_cast<std::uint64_t>(load<std::uint32_t>(b + quad * kQuad)) << 32;
    std::memcpy(to, &both, sizeof both);
  }
}

// out[t / Tokens][c / 4][t % Tokens][c % 4], two tokens at a time.
template <int Bits, int X, int Tokens>
void expand_quads(const WideCodes& page, std::uint8_t* out) {
  constexpr std::ptrdiff_t kNextQuad = Tokens * kQuad;
  const std::uint8_t* table = page.table;
  const std::uint8_t* row = page.codes;
  const int row_codes = page.d / X;
  const std::ptrdiff_t row_bytes = row_codes * Bits / 8, tile_bytes = kNextQuad * (page.d / kQuad);
  for (int t = 0; t < kPageTokens; t += 2, row += 2 * row_bytes) {
    std::uint8_t* to = out + t / Tokens * tile_bytes + t % Tokens * kQuad;
    const std::uint8_t* from = row;
    for (int i = 0; i < row_codes; i += kCodes, from += kCodes * Bits / 8) {
      std::uint32_t a[kCodes], b[kCodes];
      read_codes<Bits>(from, a);
      read_codes<Bits>(from + row_bytes, b);
      for (int j = 0; j < kCodes; ++j, to += X / kQuad * kNextQuad)
        store_quads<X>(table + a[j] * X, table + b[j] * X, kNextQuad, to);
    }
  }
}

template <int Tokens>
void expand(const WideCodes& page, std::uint8_t* out) {
  if (page.bits == 12 && page.vector_channels == 4) return expand_quads<12, 4, Tokens>(page, out);
  if (page.bits == 12 && page.vector_channels == 8) return expand_quads<12, 8, Tokens>(page, out);
  if (page.bits == 10 && page.vector_channels == 4) return expand_quads<10, 4, Tokens>(page, out);
  KVANT_CHECK(page.bits == 10 && page.vector_channels == 8, "wide codes of another shape");
  expand_quads<10, 8, Tokens>(page, out);
}

// n times [8 tokens][4 channels] becomes [4 channels][8 tokens].
KVANT_SIMD_CLONES void transpose_octets(std::uint8_t* bytes, int n) {
  typedef std::uint8_t Block __attribute__((vector_size(kOctet * kQuad)));
  for (int i = 0; i < n; ++i, bytes += sizeof(Block)) {
    Block x;
    std::memcpy(&x, bytes, sizeof x);
    x = __builtin_shufflevector(x, x, 0, 4, 8, 12, 16, 20, 24, 28,  //
                                1, 5, 9, 13, 17, 21, 25, 29,        //
                                2, 6, 10, 14, 18, 22, 26, 30,       //
                                3, 7, 11, 15, 19, 23, 27, 31);
    std::memcpy(bytes, &x, sizeof x);
  }
}

// Of tiles of `Tokens` tokens and `Groups` groups side by side: [t / Tokens][g / Groups][Tokens][Groups].
template <int Tokens, int Groups, int X>
void expand_bytes(const ByteCodes& page, std::uint8_t* out) {
  constexpr std::ptrdiff_t kNextQuad = Tokens * kQuad, kNextGroup = X / kQuad * kNextQuad;
  const int n_tiles = kPageTokens / Tokens * (page.d / X / Groups);
  const std::uint8_t* from = page.codes;
  for (int tile = 0; tile < n_tiles; ++tile, out += Groups * kNextGroup) {
    for (int t = 0; t < Tokens; t += 2, from += 2 * Groups) {
      for (int g = 0; g < Groups; ++g) {
        store_quads<X>(page.codebook + from[g] * X, page.codebook + from[Groups + g] * X, kNextQuad,
                       out + g * kNextGroup + t * kQuad);
      }
    }
  }
}

template <int Tokens, int Groups>
void expand(const ByteCodes& page, std::uint8_t* out) {
  if (page.vector_channels == 4) return expand_bytes<Tokens, Groups, 4>(page, out);
  KVANT_CHECK(page.vector_channels == 8, "codes of a byte of another shape");
  expand_bytes<Tokens, Groups, 8>(page, out);
}

}  // namespace

void expand_for_scores(const ByteCodes& page, std::uint8_t* out) {
  expand<kLaneTokens, kLaneGroups>(page, out);
}

void expand_for_mix(const ByteCodes& page, std::uint8_t* out) {
  expand<kOctet, 1>(page, out);
  transpose_octets(out, kPageTokens / kOctet * (page.d / kQuad));
}

void expand_for_scores(const WideCodes& page, std::uint8_t* out) {
  expand<kLaneTokens>(page, out);
}

void expand_for_mix(const WideCodes& page, std::uint8_t* out) {
  expand<kOctet>(page, out);
  transpose_octets(out, kPageTokens / kOctet * (page.d / kQuad));
}

}  // namespace kvant::cpu
