// CodeScheme says how the values of a page follow from small codes. With this description, a backend can
// multiply the codes of any format family as integers and need not know the family.
//
// value(t, c) = token_scale[g][t] * channel_scale[b][c] * number(t, c)
//               + token_offset[g][t] + channel_offset[b][c]
//
// Here g is the group of channels that contains c, and b is the block of tokens that contains t. number(t, c)
// is an integer that fits in a byte (CodeMeaning in code_meaning.h).
//
// The codes of a page are its first bytes, [kPageTokens][row_bytes]. The codes of a token form groups of
// group_bytes bytes for group_channels channels. Every group begins at a whole byte, so code_order.h can
// reorder groups.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "format/code_meaning.h"

namespace kvant {

struct CodeScheme {
  CodeMeaning meaning = CodeMeaning::number;
  int bits = 0;            // bits per code
  int group_bytes = 0;     // bytes per group: `bits` for groups of 8 channels, 1 for vectors
  int group_channels = 0;  // channels per group: 8, or the channels of one vector, or of four wide vectors
  int token_groups = 0;    // groups of channels with parameters per token; may be 0
  int channel_blocks = 0;  // blocks of tokens with parameters per channel; may be 0

  // Returns the number of channels that one code of a wide vector stands for.
  int vector_channels() const { return group_channels * bits / (8 * group_bytes); }
};

// Maps codes to numbers. read_parameters() has already multiplied token_scale by `scale`, so callers must not
// do so again.
struct CodeTable {
  // Each entry is number + kTableBias, with numbers in -127 .. 127. The table is empty or has at least 32
  // entries.
  std::vector<std::uint8_t> biased;
  float scale = 1;
};

// Returns the entry of `biased` that is nearest to a number. Halves are rounded away from 0.
inline std::uint8_t biased_byte(float number) {
  return static_cast<std::uint8_t>(std::lround(number) + kTableBias);
}

// Holds the parameters of one page, named as in the formula at the top of this file. An empty vector stands
// for scales of 1 or offsets of 0.
struct CodeParameters {
  std::vector<float> token_scale, token_offset;      // [token_groups][kPageTokens]
  std::vector<float> channel_scale, channel_offset;  // [channel_blocks][d]
};

}  // namespace kvant
