// What lies behind the codes of a trellis-coded page (tcq.cc) of d channels: gains, means, the loudest gain
// and the step of the means.
#pragma once

#include <cstddef>

#include "base/host_device.h"
#include "base/page_size.h"

namespace kvant {

// In bytes from the end of the codes, where the gains are.
inline constexpr int kTrellisMeansAt = kPageTokens;
KVANT_HOST_DEVICE constexpr int trellis_loudest_at(int d) {
  return kTrellisMeansAt + d;
}
KVANT_HOST_DEVICE constexpr int trellis_step_at(int d) {
  return trellis_loudest_at(d) + 4;
}
KVANT_HOST_DEVICE constexpr int trellis_parameter_bytes(int d) {
  return trellis_step_at(d) + 2;
}
constexpr std::size_t trellis_page_bytes(int bits, int d) {
  return static_cast<std::size_t>(kPageTokens) * (d * bits / 8) + trellis_parameter_bytes(d);
}

// Means are whole numbers of one step for all channels. What rounding leaves of a mean is coded with the
// tokens, to whose variance it adds step^2 / 12: 5 % where the largest mean is 100 deviations, as of keys
// with biases that are not rotated, and 500 times less where it is 4.
inline constexpr int kLargestMeanCode = 127;
// Means saturate there; with any gain's share values are still finite.
inline constexpr float kLargestMean = 0x1p125F;

// The step for means of at most `largest`, to be rounded to BF16.
KVANT_HOST_DEVICE constexpr float step_of_means(float largest) {
  return (largest < kLargestMean ? largest : kLargestMean) / kLargestMeanCode;
}

// round: a number to the nearest whole one, halves to even.
template <class Round>
KVANT_HOST_DEVICE constexpr int code_of_mean(float mean, float step, const Round& round) {
  constexpr float kLargest = kLargestMeanCode;
  if (!(step > 0)) return 0;
  const float steps = mean / step;
  return static_cast<int>(round(steps > kLargest ? kLargest : steps < -kLargest ? -kLargest : steps));
}

}  // namespace kvant
