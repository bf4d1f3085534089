#include "format/shaped_row.h"

#include <array>
#include <cstdint>

#include "base/check.h"
#include "base/geometry.h"
#include "base/simd_clones.h"
#include "format/bit_packing.h"

namespace kvant {
namespace {

constexpr float kHalf = 0.5F;
static_assert(kMetricRank == 8, "the sum below is written out");

[[gnu::always_inline]] inline float along_metric(const std::array<float, kMetricRank>& a,
                                                 const std::array<float, kMetricRank>& b) {
  std::array<float, kMetricRank> p;
  for (int r = 0; r < kMetricRank; ++r) p[r] = a[r] * b[r];
  return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
}

// One value waits for the error of the one before it and for nothing else: what earlier ones feed back is
// summed up beside that.
KVANT_SIMD_CLONES void round_by_targets(const float* values, int n, float lowest, float last,
                                        const float* step, const float* reciprocal, const float* offset,
                                        const FeedbackStep* metric, std::uint16_t* codes) {
  std::array<float, kMetricRank> along{};  // the errors before the last one along the metric's directions
  std::array<float, kMetricRank> last_direction{};
  float error = 0;  // the last one
  for (int i = 0; i < n; ++i) {
    const std::array<float, kMetricRank>& feedback = metric[i].feedback;
    const float above_offset = values[i] - offset[i];
    const float earlier = (above_offset + along_metric(feedback, along)) * reciprocal[i] + kHalf;
    const float of_last = along_metric(feedback, last_direction) * reciprocal[i];
    for (int r = 0; r < kMetricRank; ++r) along[r] += last_direction[r] * error;
    const float position = earlier + of_last * error;
    const float above = position > lowest ? position : lowest;
    const float inside = above < last ? above : last;
    const int code = static_cast<int>(inside);  // drops the fraction
    codes[i] = static_cast<std::uint16_t>(code);
    error = above_offset - static_cast<float>(code) * step[i];
    last_direction = metric[i].directions;
  }
}

}  // namespace

void encode_shaped_row(const float* values, int n, int bits, int lowest, const float* step,
                       const float* reciprocal, const float* offset, const ErrorMetric& metric,
                       std::byte* packed) {
  KVANT_CHECK(metric.steps().size() == static_cast<std::size_t>(n), "a metric of another head size");
  std::array<std::uint16_t, kMaxHeadDim> codes;
  round_by_targets(values, n, static_cast<float>(lowest), static_cast<float>((1 << bits) - 1) + kHalf, step,
                   reciprocal, offset, metric.steps().data(), codes.data());
  pack_codes(codes.data(), n, bits, packed);
}

}  // namespace kvant
