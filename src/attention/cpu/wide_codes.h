// Pages whose codes are wider than a byte (CodeMeaning::wide_vector), as bytes in the orders that kernels
// multiply: a codebook of 2^10 and more entries fits no register, so that codes are looked up one by one,
// once for all query heads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/code_scheme.h"

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

// out[t / 16][c / 4][t % 16][c % 4]: quads of channels of 16 tokens, for sums over channels.
void expand_for_scores(const WideCodes& page, std::uint8_t* out);

// out[t / 8][c][t % 8]: octets of tokens, for sums over tokens.
void expand_for_mix(const WideCodes& page, std::uint8_t* out);

}  // namespace kvant::cpu
