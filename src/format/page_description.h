// A page's layout and meaning as data. Code that reads or writes pages of any format needs only this, not the
// format's name.
//
//   value(token, channel) = factor(token) * (number * scale + zero) [+ mean(channel), where factors are
//   octaves]
//
// with number(code) from CodeKind, and scale and zero either per token and group of channels, or per channel
// and block of tokens. Parameters follow the codes, in the order in which they are named below.
#pragma once

#include <cstdint>
#include <span>

#include "base/host_device.h"
#include "base/page_size.h"

namespace kvant {

// The numbers that codes stand for.
enum class CodeKind : std::uint8_t {
  number,  // the codes themselves
  e4m3,    // 8-bit floating-point numbers
  level,   // a level of a quantizer with 2^bits levels (FormatDescription::levels)
  state,   // a state of a trellis (trellis_code.h)
  vector,  // a centroid of several channels
  bf16,    // 16-bit numbers instead of codes
  f16
};

// The axis along which numbers are scaled and shifted.
enum class GridAxis : std::uint8_t {
  none,
  of_tokens,    // f16 scales [tokens][groups], zeros likewise; groups of channels
  of_channels,  // f16 scales [blocks][d], zeros likewise; blocks of tokens
  of_integers   // u8 steps [2][d], i8 zeros [2][d], then f32 scales [2]; blocks of 64 tokens
};

// The factor that multiplies the values of a token.
enum class TokenFactor : std::uint8_t {
  none,
  grid,    // the token's scale; its zero is added afterwards: of_tokens with one group
  half,    // f16 [tokens]
  single,  // f32 [tokens]
  block,   // the scale of the token's block in a grid of integers
  // u8 [tokens], in fractions of an octave below the loudest (trellis_gain.h). Then follow i8 means [d] in
  // steps, f32 loudest and bf16 step (trellis_parameters.h).
  octave
};

struct PageDescription {
  CodeKind kind = CodeKind::number;
  int bits = 0;      // per code; 0: there are no codes
  int channels = 1;  // per code; more than 1 for vectors
  GridAxis grid = GridAxis::none;
  int group = 0;            // of_tokens: channels; of_channels: tokens
  bool symmetric = false;   // of_tokens: no zeros are stored, and the middle code stands for 0
  bool clips = false;       // of_tokens: the encoder clips values to a narrower range
  bool as_printed = false;  // of_integers: zeros count steps, and integers are clamped (prog<B>-paper)
  TokenFactor factor = TokenFactor::none;
  bool own_codebooks = false;  // vectors: each sub-space has a codebook of its own
  bool unbiased = false;       // level: the encoder fits the unbiased gain

  KVANT_HOST_DEVICE constexpr bool plain() const { return kind == CodeKind::bf16 || kind == CodeKind::f16; }
  // The number of groups of channels with a grid of their own in each token.
  KVANT_HOST_DEVICE constexpr int groups(int d) const { return (d + group - 1) / group; }
  // The number of half-precision values at the start of the parameters.
  KVANT_HOST_DEVICE constexpr int half_parameters(int d) const {
    if (grid == GridAxis::of_channels) return kPageTokens / group * d * 2;
    if (grid == GridAxis::of_tokens || factor == TokenFactor::grid)
      return kPageTokens * groups(d) * (symmetric ? 1 : 2);
    return factor == TokenFactor::half ? kPageTokens : 0;
  }
};

struct FormatDescription {
  PageDescription page;
  std::span<const double>
      // level: for values with a variance of 1, in the order of codes. The format owns them.
      levels;
  float unit = 1;                // factor for these levels, or for those of a trellis's states
  bool of_unit_vectors = false;  // multiply also by 1 / sqrt(d)
  float largest = 1;  // e4m3, of_integers: the largest value of a token or block is stored as this number
};

}  // namespace kvant
