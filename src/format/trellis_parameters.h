// Locates the parameters that follow the codes of a trellis-coded page (tcq.cc) of d channels: gains, means,
// the loudest gain and the step of the means. The CPU and the GPU share these definitions.
#pragma once

#include <cstddef>

#include "base/host_device.h"
#include "base/page_size.h"

namespace kvant {

// Offsets are in bytes from the end of the codes, where the gains begin.
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

// Means are multiples of one step for all channels. The rounding error of a mean is coded with the tokens and
// adds step^2 / 12 to their variance. The addition is 5 % if the largest mean is 100 standard deviations, as
// for keys with biases that are not rotated. If the largest mean is 4 standard deviations, the addition is
// 625 times less.
inline constexpr int kLargestMeanCode = 127;
// Means saturate at kLargestMean, so values remain finite after adding the largest gain times a level.
inline constexpr float kLargestMean = 0x1p125F;
// Steps below kLeastStep are stored as 0, which makes all means 0.
inline constexpr float kLeastStep = 0x1p-120F;

// Returns the step for means of at most `largest`. The caller rounds the step to BF16.
KVANT_HOST_DEVICE constexpr float step_of_means(float largest) {
  const float step = (largest < kLargestMean ? largest : kLargestMean) * (1.0F / kLargestMeanCode);
  return step >= kLeastStep ? step : 0;
}

// Returns the code of a mean. `reciprocal` is 1 / step, or 0 if the step is 0. round(x) rounds to the nearest
// integer, and halves to even.
template <class Round>
KVANT_HOST_DEVICE constexpr int code_of_mean(float mean, float reciprocal, const Round& round) {
  constexpr float kLargest = kLargestMeanCode;
  const float steps = mean * reciprocal;
  return static_cast<int>(round(steps > kLargest ? kLargest : steps < -kLargest ? -kLargest : steps));
}

}  // namespace kvant
