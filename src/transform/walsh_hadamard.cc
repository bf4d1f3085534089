#include "transform/walsh_hadamard.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/simd_clones.h"

namespace kvant {
namespace {

// Lanes holds eight floats, which the compiler keeps in one or two registers.
using Lanes = float __attribute__((vector_size(32)));

// Multiplies every block of `order` values in x [cols] by H. Steps of distance 1, 2 and 4 work within eight
// lanes: (a, b) -> (a + b, a - b) is the exchanged lanes plus the lanes with signs. The other steps are sums
// and differences of whole vectors.
KVANT_SIMD_CLONES void transform_row(float* x, int cols, int order, float norm) {
  const Lanes sign1 = {1, -1, 1, -1, 1, -1, 1, -1};
  const Lanes sign2 = {1, 1, -1, -1, 1, 1, -1, -1};
  const Lanes sign4 = {1, 1, 1, 1, -1, -1, -1, -1};
  for (int i = 0; i < cols; i += 8) {
    Lanes a;
    std::memcpy(&a, x + i, sizeof(a));
    a *= norm;
    a = __builtin_shufflevector(a, a, 1, 0, 3, 2, 5, 4, 7, 6) + sign1 * a;
    a = __builtin_shufflevector(a, a, 2, 3, 0, 1, 6, 7, 4, 5) + sign2 * a;
    a = __builtin_shufflevector(a, a, 4, 5, 6, 7, 0, 1, 2, 3) + sign4 * a;
    std::memcpy(x + i, &a, sizeof(a));
  }
  for (int half = 8; half < order; half *= 2) {
    for (int block = 0; block < cols; block += 2 * half) {
      float* low = x + block;
      float* high = low + half;
      for (int i = 0; i < half; i += 8) {
        Lanes a;
        Lanes b;
        std::memcpy(&a, low + i, sizeof(a));
        std::memcpy(&b, high + i, sizeof(b));
        const Lanes sum = a + b;
        const Lanes difference = a - b;
        std::memcpy(low + i, &sum, sizeof(sum));
        std::memcpy(high + i, &difference, sizeof(difference));
      }
    }
  }
}

}  // namespace

void walsh_hadamard(MatrixView<float> x, int order) {
  KVANT_CHECK(order >= 8 && (order & (order - 1)) == 0 && x.cols % order == 0, "not an order of H");
  const float norm = 1.0F / std::sqrt(static_cast<float>(order));
  for (int r = 0; r < x.rows; ++r) transform_row(x.row(r), x.cols, order, norm);
}

}  // namespace kvant
