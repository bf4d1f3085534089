#include "attention/integer_rounding.h"

#include <algorithm>
#include <cmath>

namespace kvant {
namespace {

constexpr float kTiny = 0x1p-100F;

}  // namespace

float round_to_integers(float* x, int n) {
  float largest = 0;
  for (int i = 0; i < n; ++i) largest = std::max(largest, std::abs(x[i]));
  const float scale = largest < kTiny ? 0 : largest / kIntegerMax;
  const float reciprocal = scale == 0 ? 0 : 1 / scale;
  for (int i = 0; i < n; ++i) x[i] = std::nearbyint(x[i] * reciprocal);
  return scale;
}

void quantize_queries(QueryTile& tile, int head_dim) {
  tile.q_scale.resize(tile.rows());
  for (int r = 0; r < tile.rows(); ++r) {
    tile.q_scale[r] = round_to_integers(tile.q.data() + static_cast<std::ptrdiff_t>(r) * head_dim, head_dim);
  }
}

}  // namespace kvant
