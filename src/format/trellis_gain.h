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

}  // namespace kvant
