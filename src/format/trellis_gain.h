// The gains of trellis-coded tokens: 8-bit codes, in fractions of an octave below the page's loudest.
#pragma once

#include "base/host_device.h"

namespace kvant {

inline constexpr int kGainSteps = 32;  // gain codes in an octave
inline constexpr int kSilent = 255;    // the gain code of 0

// exp2: the power of two in the caller's precision.
template <class Number, class Exp2>
KVANT_HOST_DEVICE constexpr Number gain_of_code(int code, Number loudest, const Exp2& exp2) {
  return code == kSilent ? Number{0} : loudest * exp2(static_cast<Number>(code) * (Number{-1} / kGainSteps));
}

// Gains of all pages are powers of 2^(1 / kGainSteps), the loudest as well. A row is encoded over the one
// that is nearest to its root mean square: so the search for codes makes up for that rounding. The gain that
// is fitted to the codes is rounded again, but with 5 and 6 bits hardly moves. Gains that are rounded
// afterwards alone would leave an error along the token, which alone is as large as that of 6-bit codes.
//
// What codes leave is across the values as well as along them: a gain fitted by least squares, <x, c> / <c,
// c> for values x and their shape c, shortens x by the share of its energy that is left. Shorter keys flatten
// the softmax, shorter values shrink the output, and both do so for all tokens alike, while errors across
// average out. So gains go a part of the way to the unbiased <x, x> / <x, c>, for which <gain c, x> = <x, x>.
// The parts of the way, in the exponent, that harm predictions least: docs/lab/2026-11-25-codes-and-bases.md.
inline constexpr float kUnbiasedKeys = 0.75F, kUnbiasedValues = 1;
// At most so much of a gain that codes which hardly resemble their values get.
inline constexpr float kMostStretch = 2;

// energy: <x, x>, along: <x, c>, length: <c, c>; 0 where there is no such gain. pow: in the caller's
// precision.
template <class Number, class Pow>
KVANT_HOST_DEVICE constexpr Number fitted_gain(Number energy, Number along, Number length,
                                               Number unbiased_share, const Pow& pow) {
  if (!(length > 0) || !(along > 0)) return 0;
  const Number least_squares = along / length, stretch = energy / along / least_squares;
  return least_squares * pow(stretch < Number{kMostStretch} ? stretch : Number{kMostStretch}, unbiased_share);
}

}  // namespace kvant
