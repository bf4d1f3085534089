// How to interpret the bytes of a page: as codes (code_scheme.h) or as numbers.
#pragma once

#include <cstdint>

namespace kvant {

enum class CodeMeaning : std::uint8_t {
  number,  // the code itself, 0 .. 2^bits - 1
  level,   // table[code], 2^bits entries
  state,   // the level of the 8 bits of the token's circular stream that end with the code (trellis_code.h)
  vector,  // table[i][code] for channel i of the group, [group_channels][256]; a code is one byte
  wide_vector,  // table[code][i] for channel i of a sub-vector, [2^bits][channels]; a group is 4
                // codes, lowest bits first
};

// Entries of a table are stored as number + kTableBias (code_scheme.h), so they are unsigned bytes.
inline constexpr int kTableBias = 128;

// The type of the numbers that a page's first bytes store in rows of [kPageTokens][d]. e4m3 pages contain
// neither infinities nor NaN.
enum class NumberType : std::uint8_t { none, bf16, f16, e4m3, f32 };

}  // namespace kvant
