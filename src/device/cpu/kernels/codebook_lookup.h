// Turns pages of vector codes into bytes in the orders that kernels multiply. A codebook that does not fit
// into registers is looked up code by code, once for all query heads. Codes wider than a byte
// (CodeMeaning::wide_vector) need such look-ups, and so do byte codes on instruction sets with small
// registers. Like byte_kernels.h, this header uses no inline functions of the standard library.
#pragma once

#include <cstdint>

namespace kvant::cpu {

// Describes the codes of a page in rows and their codebook. The codes are [kPageTokens][d / X] with `bits`
// bits each, and a row has a multiple of 4 codes. The codebook is [2^bits][X] bytes.
struct WideCodes {
  const std::uint8_t* codes;
  const std::uint8_t* table;
  int bits;             // 10 or 12
  int vector_channels;  // X, 4 or 8
  int d;
};

// Describes byte codes (CodeMeaning::vector) in the order of their side (code_order.h), with the codebook in
// two orders.
struct ByteCodes {
  const std::uint8_t* codes;
  const std::uint8_t* channels;  // [vector_channels][256]
  // Holds [256][vector_channels]. With 2 channels each centroid appears twice, which gives [256][4].
  const std::uint8_t* centroids;
  int vector_channels;  // 2, 4 or 8
  int d;
};

// Holds the look-up functions of one instruction set.
struct CodebookLookup {
  // Write out[t / 16][c / 4][t % 16][c % 4], which is quads of channels of 16 tokens, for sums over channels.
  void (*wide_for_scores)(const WideCodes& page, std::uint8_t* out);
  void (*bytes_for_scores)(const ByteCodes& page, std::uint8_t* out);
  // Write out[t / 8][c][t % 8], which is octets of tokens, for sums over tokens.
  void (*wide_for_mix)(const WideCodes& page, std::uint8_t* out);
  void (*bytes_for_mix)(const ByteCodes& page, std::uint8_t* out);
};

}  // namespace kvant::cpu
