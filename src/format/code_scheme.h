// How the values of a page follow from small codes. A backend needs only this to multiply codes as integers,
// whatever format family they come from.
//
// value(t, c) = token_scale[g][t] * channel_scale[b][c] * number(t, c) + token_offset[g][t] +
// channel_offset[b][c]
//
// with g the group of channels that contains c, b the block of tokens that contains t, and number(t, c) an
// integer that fits in a byte (code_meaning.h).
//
// The codes of a page are its first bytes, [kPageTokens][row_bytes]. The codes of a token form groups that
// begin at whole bytes: group_bytes bytes for group_channels channels. code_order.h relies on that to
// reorder them.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "format/code_meaning.h"

namespace kvant {

struct CodeScheme {
  CodeMeaning meaning = CodeMeaning::number;
  int bits = 0;            // of a code
  int group_bytes = 0;     // bytes per group of channels: `bits` for groups of 8; 1 for vectors
  int group_channels = 0;  // 8; for vectors, their channels; for wide vectors, all channels of the group
  int token_groups = 0;    // groups of channels with parameters per token; 0: no such parameters
  int channel_blocks = 0;  // blocks of tokens with parameters per channel; 0: no such parameters

  // Returns the number of channels that one code of a wide vector stands for.
  int vector_channels() const { return group_channels * bits / (8 * group_bytes); }
};

// Maps codes to numbers; `scale` is already part of token_scale.
struct CodeTable {
  // number + kTableBias, with numbers within +-127; at least 32 entries unless empty
  std::vector<std::uint8_t> biased;
  float scale = 1;
};

// Returns the entry of `biased` for a number, rounded to the nearest, halves away from 0.
inline std::uint8_t biased_byte(float number) {
  return static_cast<std::uint8_t>(std::lround(number) + kTableBias);
}

// Holds the parameters of one page, named as in the formula above. An empty vector stands for scales of 1 or
// offsets of 0.
struct CodeParameters {
  std::vector<float> token_scale, token_offset;      // [token_groups][kPageTokens]
  std::vector<float> channel_scale, channel_offset;  // [channel_blocks][d]
};

}  // namespace kvant
