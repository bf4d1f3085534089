#include "attention/integer_rounding.h"

#include <algorithm>
#include <cmath>

#include "base/simd_clones.h"

namespace kvant {
namespace {

constexpr float kTiny = 0x1p-100F;
constexpr int kLanes = 16;

KVANT_SIMD_CLONES float largest_magnitude(const float* x, int n) {
  float lanes[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      const float magnitude = std::fabs(x[i + j]);
      lanes[j] = magnitude > lanes[j] ? magnitude : lanes[j];
    }
  }
  for (; i < n; ++i) lanes[0] = std::max(lanes[0], std::fabs(x[i]));
  for (int half = kLanes / 2; half > 0; half /= 2) {  // pairs side by side, not one after another
    for (int j = 0; j < half; ++j) lanes[j] = lanes[half + j] > lanes[j] ? lanes[half + j] : lanes[j];
  }
  return lanes[0];
}

// To the nearest integers, halves to even: what a sum of this size has no room for is rounded away.
KVANT_SIMD_CLONES void round_row(float* x, int n, float reciprocal) {
  constexpr float kNoFraction = 0x1.8p23F;
  for (int i = 0; i < n; ++i) x[i] = (x[i] * reciprocal + kNoFraction) - kNoFraction;
}

}  // namespace

float round_to_integers(float* x, int n) {
  const float largest = largest_magnitude(x, n);
  const float scale = largest < kTiny ? 0 : largest / kIntegerMax;
  const float reciprocal = scale == 0 ? 0 : 1 / scale;
  round_row(x, n, reciprocal);
  return scale;
}

void quantize_queries(QueryTile& tile, int head_dim) {
  tile.q_scale.resize(tile.rows());
  for (int r = 0; r < tile.rows(); ++r) {
    tile.q_scale[r] = round_to_integers(tile.q.data() + static_cast<std::ptrdiff_t>(r) * head_dim, head_dim);
  }
}

}  // namespace kvant
