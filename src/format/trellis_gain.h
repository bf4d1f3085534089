// Fits and decodes the gains of trellis-coded tokens, for the CPU and the GPU. A gain is an 8-bit code in
// fractions of an octave below the page's loudest gain.
#pragma once

#include "base/host_device.h"

namespace kvant {

inline constexpr int kGainSteps = 32;  // gain codes in an octave
inline constexpr int kSilent = 255;    // the code that stands for a gain of 0

// Returns the gain of a code. exp2 is the power of two in the caller's precision.
template <class Number, class Exp2>
KVANT_HOST_DEVICE constexpr Number gain_of_code(int code, Number loudest, const Exp2& exp2) {
  return code == kSilent ? Number{0} : loudest * exp2(static_cast<Number>(code) * (Number{-1} / kGainSteps));
}

// Gains of all pages, including the loudest, are powers of 2^(1 / kGainSteps). A row is divided by the power
// that is nearest to the row's root mean square, so the search for codes corrects the rounding. The gain that
// is fitted to the codes is rounded again, which hardly changes the gain with 5 and 6 bits. Rounding gains
// only after the search would leave an error along the token as large as the whole error of 6-bit codes.
//
// Quantization errors lie across the values as well as along them. A least squares gain is <x, c> / <c, c>
// for values x and their shape c. This gain shortens x by the share of the energy of x that quantization
// loses. Shorter keys flatten the softmax and shorter values shrink the output, for all tokens alike, while
// errors across the values average out. Gains therefore lie between least squares and the unbiased gain <x,
// x> / <x, c>, for which <gain c, x> = <x, x>. The gain is the product of the two, with the exponents 1 - u
// and u. kUnbiasedKeys and kUnbiasedValues are the values of u that harm predictions least
// (docs/lab/trellises.md).
inline constexpr float kUnbiasedKeys = 0.75F, kUnbiasedValues = 1;
// Limits the unbiased gain, relative to least squares, of codes that hardly resemble their values.
inline constexpr float kMostStretch = 2;

// Fits a gain, where `energy` is <x, x>, `along` is <x, c>, and `length` is <c, c>. The gain is 0 if the
// codes do not resemble the values. `pow` works in the caller's precision.
template <class Number, class Pow>
KVANT_HOST_DEVICE constexpr Number fitted_gain(Number energy, Number along, Number length,
                                               Number unbiased_share, const Pow& pow) {
  if (!(length > 0) || !(along > 0)) return 0;
  const Number least_squares = along / length, stretch = energy / along / least_squares;
  return least_squares * pow(stretch < Number{kMostStretch} ? stretch : Number{kMostStretch}, unbiased_share);
}

}  // namespace kvant
