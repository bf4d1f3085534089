#include "attention/sas.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/simd_clones.h"

namespace kvant {
namespace {

// exp(-i) for i = 0 .. 6. The bucket of kSasFloor itself is kept: Algorithm 3 as printed would zero it.
constexpr std::array<float, 7> kWholeExp = {1.0F,         0.36787944F,   0.13533528F,  0.049787068F,
                                            0.018315639F, 0.0067379470F, 0.0024787522F};

// Near exp(-f) for f in [0, 1).
inline float polynomial(float f) {
  return ((-0.1025F * f + 0.4626F) * f - 0.9922F) * f + 0.9996F;
}

}  // namespace

float sas_exp(float x) {
  if (!(x >= kSasFloor)) return 0;  // -inf: masked
  const int whole = static_cast<int>(-x);
  return kWholeExp[whole] * polynomial(-x - static_cast<float>(whole));
}

// As sas_exp, without branches.
KVANT_SIMD_CLONES float sas_row(float* x, int n, float max) {
  constexpr int kLanes = 16;
  float sums[kLanes] = {};
  for (int first = 0; first < n; first += kLanes) {
    const int end = std::min(kLanes, n - first);
    for (int j = 0; j < end; ++j) {
      const float score = x[first + j] - max;
      const bool inside = score >= kSasFloor;
      const float below = inside ? -score : 0.0F;
      const int whole = static_cast<int>(below);
      float whole_exp = kWholeExp[0];  // chosen, not looked up: that has a vector instruction everywhere
      for (int i = 1; i < static_cast<int>(kWholeExp.size()); ++i)
        whole_exp = whole >= i ? kWholeExp[i] : whole_exp;
      const float weight = inside ? whole_exp * polynomial(below - static_cast<float>(whole)) : 0.0F;
      x[first + j] = weight;
      sums[j] += weight;
    }
  }
  return std::accumulate(sums, sums + kLanes, 0.0F);
}

}  // namespace kvant
