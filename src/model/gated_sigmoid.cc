#include "model/gated_sigmoid.h"

#include <algorithm>
#include <cmath>

#include "base/softmax.h"

namespace kvant {

float sigmoid(float x) {
  return 1 / (1 + std::exp(-x));
}

// All arguments of exponentials are at most 0, so none overflows.
void gated_sigmoid(float* x, int n, float slope) {
  constexpr int kBlock = 64;
  float e[kBlock];
  for (int first = 0; first < n; first += kBlock) {
    const int m = std::min(kBlock, n - first);
    float* g = x + first;
    for (int i = 0; i < m; ++i) e[i] = -std::abs(slope * g[i]);
    exp_row(e, m, 0);
    for (int i = 0; i < m; ++i) g[i] *= (g[i] >= 0 ? 1 : e[i]) / (1 + e[i]);
  }
}

}  // namespace kvant
