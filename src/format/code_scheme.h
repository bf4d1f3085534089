// How the values of a page follow from small codes: what a backend needs to multiply codes as integers,
// whatever family they are of.
//
// value(t, c) = token_scale[g][t] * channel_scale[b][c] * number(t, c) + token_offset[g][t] +
// channel_offset[b][c]
//
// with g the group of channels that c lies in, b the block of tokens that t lies in, and number(t, c) an
// integer that fits a byte: what the code means.
//
// The codes of a page are its first bytes, [kPageTokens][row_bytes], and a token's codes form groups that
// begin at whole bytes: group_bytes bytes for group_channels channels. That is what lets code_order.h put
// them into another order.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "format/code_meaning.h"

namespace kvant {

struct CodeScheme {
  CodeMeaning meaning = CodeMeaning::number;
  int bits = 0;            // of a code
  int group_bytes = 0;     // of a group of channels: `bits` for groups of 8; 1 for vectors
  int group_channels = 0;  // 8; of vectors, their channels; of wide vectors, of all in the group
  int token_groups = 0;    // groups of channels with token parameters of their own; 0: no such parameters
  int channel_blocks = 0;  // blocks of tokens with channel parameters of their own; 0: no such parameters

  // Channels that one code of a wide vector stands for.
  int vector_channels() const { return group_channels * bits / (8 * group_bytes); }
};

// What codes stand for, and the factor that belongs to token_scale already.
struct CodeTable {
  std::vector<std::uint8_t> biased;  // number + kTableBias, numbers within +-127; at least 32, if any
  float scale = 1;
};

// A number as an entry of `biased`, rounded to the nearest, halves away from 0.
inline std::uint8_t biased_byte(float number) {
  return static_cast<std::uint8_t>(std::lround(number) + kTableBias);
}

// The parameters of one page, as the formula above has them; an empty vector: 1 for a scale, 0 for an offset.
struct CodeParameters {
  std::vector<float> token_scale, token_offset;      // [token_groups][kPageTokens]
  std::vector<float> channel_scale, channel_offset;  // [channel_blocks][d]
};

}  // namespace kvant
