// Says what the bytes of a page stand for: codes of a CodeScheme (code_scheme.h), or numbers. The header has
// no other contents, because kernels for single instruction sets include the header, too.
#pragma once

#include <cstdint>

namespace kvant {

enum class CodeMeaning : std::uint8_t {
  number,       // The code itself is the number, 0 .. 2^bits - 1.
  level,        // The number is table[code], with 2^bits entries.
  state,        // The code ends a state of 8 bits in the token's circular stream; the number is its level.
  vector,       // The number of channel i is table[i][code], a table [group_channels][256].
  wide_vector,  // The number of channel i of a sub-vector is table[code][i]; a group is 4 codes.
};

// Entries of a table are stored as number + kTableBias (code_scheme.h), which makes them unsigned bytes.
inline constexpr int kTableBias = 128;

// NumberType is the type of the numbers [kPageTokens][d] with which a page begins, or `none` for pages of
// codes. e4m3 pages contain neither infinities nor NaN.
enum class NumberType : std::uint8_t { none, bf16, f16, e4m3, f32 };

}  // namespace kvant
