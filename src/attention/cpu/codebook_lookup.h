// Pages of vectors' codes as bytes in the orders that kernels multiply: a codebook that fits no registers is
// looked up code by code, once for all query heads. That is so for codes wider than a byte
// (CodeMeaning::wide_vector), and for those of a byte where registers are small. Included as byte_kernels.h
// is.
#pragma once

#include <cstdint>

namespace kvant::cpu {

// A page's codes in rows, [kPageTokens][d / X] of `bits` bits, a multiple of 4 a row, and the codebook
// [2^bits][X] as bytes.
struct WideCodes {
  const std::uint8_t* codes;
  const std::uint8_t* table;
  int bits;             // 10 or 12
  int vector_channels;  // X: 4 or 8
  int d;
};

// The same for codes of a byte (CodeMeaning::vector) in the order of their side (code_order.h), with the
// codebook in two orders.
struct ByteCodes {
  const std::uint8_t* codes;
  const std::uint8_t* channels;   // [vector_channels][256]
  const std::uint8_t* centroids;  // [256][vector_channels]; of 2 channels, each twice: [256][4]
  int vector_channels;            // 2, 4 or 8
  int d;
};

// One instruction set.
struct CodebookLookup {
  // out[t / 16][c / 4][t % 16][c % 4]: quads of channels of 16 tokens, for sums over channels.
  void (*wide_for_scores)(const WideCodes& page, std::uint8_t* out);
  void (*bytes_for_scores)(const ByteCodes& page, std::uint8_t* out);
  // out[t / 8][c][t % 8]: octets of tokens, for sums over tokens.
  void (*wide_for_mix)(const WideCodes& page, std::uint8_t* out);
  void (*bytes_for_mix)(const ByteCodes& page, std::uint8_t* out);
};

}  // namespace kvant::cpu
