// FormatDescription describes a page's layout and meaning as data. Code that reads or writes pages of any
// format needs only this description, not the format's name.
//
// value(token, channel) = factor(token) * (number * scale + zero) [+ mean(channel) for TokenFactor::octave]
//
// The number follows from the code by CodeKind. Scale and zero belong either to a token and a group of
// channels, or to a channel and a block of tokens (GridAxis). The parameters follow the codes: first the
// parameters of GridAxis, then the parameters of TokenFactor, in the order that each enumerator states.
#pragma once

#include <cstdint>
#include <span>

#include "base/host_device.h"
#include "base/page_size.h"

namespace kvant {

// CodeKind says which numbers codes stand for.
enum class CodeKind : std::uint8_t {
  number,  // The code is the number.
  e4m3,    // The code is an 8-bit floating-point number.
  level,   // The code selects a level (FormatDescription::levels).
  state,   // The code ends a state of a trellis (trellis_code.h).
  vector,  // The code selects a centroid of several channels.
  bf16,    // The page has 16-bit numbers instead of codes.
  f16
};

// GridAxis is the axis along which numbers are scaled and shifted.
enum class GridAxis : std::uint8_t {
  none,
  of_tokens,    // f16 scales [tokens][groups of channels], then f16 zeros of the same shape
  of_channels,  // f16 scales [blocks of tokens][d], then f16 zeros of the same shape
  of_integers   // u8 steps [2][d], i8 zeros [2][d], then f32 scales [2], for blocks of 64 tokens
};

// TokenFactor is the factor that multiplies the values of a token.
enum class TokenFactor : std::uint8_t {
  none,
  grid,    // The scale of of_tokens with one group; the zero is added after the product.
  half,    // f16 [tokens]
  single,  // f32 [tokens]
  block,   // The f32 scale of the token's block in of_integers.
  // The page stores u8 gains [tokens], as fractions of an octave below the loudest gain (trellis_gain.h). The
  // i8 means [d], the f32 loudest gain and the bf16 step follow (trellis_parameters.h).
  octave
};

struct PageDescription {
  CodeKind kind = CodeKind::number;
  int bits = 0;      // bits per code, 0 if there are no codes
  int channels = 1;  // channels per code, more than 1 for vectors
  GridAxis grid = GridAxis::none;
  int group = 0;            // channels per group for of_tokens, tokens per group for of_channels
  bool symmetric = false;   // No zeros of of_tokens are stored, and the middle code stands for 0.
  bool clips = false;       // The encoder of of_tokens clips values to a narrower range.
  bool as_printed = false;  // Zeros of of_integers count steps, and integers are clamped (prog<B>-paper).
  TokenFactor factor = TokenFactor::none;
  bool own_codebooks = false;  // Each sub-space of the vectors has a codebook of its own.
  bool unbiased = false;       // The encoder of levels fits the unbiased gain (gain.h).

  KVANT_HOST_DEVICE constexpr bool plain() const { return kind == CodeKind::bf16 || kind == CodeKind::f16; }
  // Returns the number of groups of channels with a grid of their own in each token.
  KVANT_HOST_DEVICE constexpr int groups(int d) const { return (d + group - 1) / group; }
  // Returns the number of f16 numbers at the start of the parameters.
  KVANT_HOST_DEVICE constexpr int half_parameters(int d) const {
    if (grid == GridAxis::of_channels) return kPageTokens / group * d * 2;
    if (grid == GridAxis::of_tokens || factor == TokenFactor::grid)
      return kPageTokens * groups(d) * (symmetric ? 1 : 2);
    return factor == TokenFactor::half ? kPageTokens : 0;
  }
};

struct FormatDescription {
  PageDescription page;
  // `levels` lists the levels of values with a variance of 1, in the order of codes. The format owns the
  // array.
  std::span<const double> levels;
  float unit = 1;                // factor of `levels`, or of the levels of a trellis's states
  bool of_unit_vectors = false;  // whether `levels` are also multiplied by 1 / sqrt(d)
  float largest = 1;             // stands for the largest value of a token or block in e4m3 and of_integers
};

}  // namespace kvant
