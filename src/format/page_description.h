// What the bytes of a page stand for, as data: all that code needs which reads the pages of any format, or
// makes them, without knowing its name.
//
//   value(token, channel) = factor(token) * (number * scale + zero) [+ mean(channel), where factors are
//   octaves]
//
// with the number that a code stands for, and scale and zero by token and group of channels or by channel and
// block of tokens. Parameters lie behind the codes, in the order in which they are named below.
#pragma once

#include <cstdint>
#include <span>

#include "base/host_device.h"
#include "base/page_size.h"

namespace kvant {

// What codes stand for.
enum class CodeKind : std::uint8_t {
  number,  // themselves
  e4m3,    // 8-bit floating-point numbers
  level,   // of a quantizer of 2^bits levels (FormatDescription::levels)
  state,   // of a trellis (trellis_code.h)
  vector,  // a centroid of some channels
  bf16,    // there are no codes: 16-bit numbers
  f16
};

// How numbers are scaled and shifted.
enum class GridAxis : std::uint8_t {
  none,
  of_tokens,    // f16 scales [tokens][groups], zeros likewise; groups of channels
  of_channels,  // f16 scales [blocks][d], zeros likewise; blocks of tokens
  of_integers   // u8 steps [2][d], i8 zeros [2][d], then f32 scales [2]; blocks of 64 tokens
};

// What the values of a token are multiplied by.
enum class TokenFactor : std::uint8_t {
  none,
  grid,    // its scale, then its zero is added: of_tokens with one group
  half,    // f16 [tokens]
  single,  // f32 [tokens]
  block,   // the scale of its block of a grid of integers
  octave   // u8 [tokens], in fractions of an octave below the loudest (trellis_gain.h); then i8 means [d] in
           // steps; f32 loudest; bf16 step (trellis_parameters.h)
};

struct PageDescription {
  CodeKind kind = CodeKind::number;
  int bits = 0;      // of a code; 0: there are none
  int channels = 1;  // of a code: more than 1 of vectors
  GridAxis grid = GridAxis::none;
  int group = 0;            // of_tokens: channels; of_channels: tokens
  bool symmetric = false;   // of_tokens: no zeros are stored, the middle of the codes is 0
  bool clips = false;       // of_tokens: ranges are narrower than the values, to encode by
  bool as_printed = false;  // of_integers: zeros count steps, and integers are clamped (prog<B>-paper)
  TokenFactor factor = TokenFactor::none;
  bool own_codebooks = false;  // vectors: each sub-space has a codebook of its own
  bool unbiased = false;       // level: the gain is the unbiased one, to encode by

  KVANT_HOST_DEVICE constexpr bool plain() const { return kind == CodeKind::bf16 || kind == CodeKind::f16; }
  // Groups of channels of a token that have a grid of their own.
  KVANT_HOST_DEVICE constexpr int groups(int d) const { return (d + group - 1) / group; }
  // How many half-precision numbers the parameters begin with.
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
      levels;                    // level: of values with a variance of 1, in the order of codes; the format's
  float unit = 1;                // what levels, and those of a trellis's states, are to be multiplied by
  bool of_unit_vectors = false;  // and by 1 / sqrt(d)
  float largest = 1;  // e4m3, of_integers: the number that the largest value of a token or block becomes
};

}  // namespace kvant
