#include "attention/sas.h"

#include <array>

namespace kvant {
namespace {

// exp(-i) for i = 0 .. 6. The bucket of kSasFloor itself is kept: Algorithm 3 as printed would zero it.
constexpr std::array<float, 7> kWholeExp = {1.0F,         0.36787944F,   0.13533528F,  0.049787068F,
                                            0.018315639F, 0.0067379470F, 0.0024787522F};

}  // namespace

float sas_exp(float x) {
  if (!(x >= kSasFloor)) return 0;  // -inf: masked
  const int whole = static_cast<int>(-x);
  const float f = -x - static_cast<float>(whole);
  const float polynomial = ((-0.1025F * f + 0.4626F) * f - 0.9922F) * f + 0.9996F;
  return kWholeExp[whole] * polynomial;
}

float sas_row(float* x, int n, float max) {
  float sum = 0;
  for (int i = 0; i < n; ++i) {
    x[i] = sas_exp(x[i] - max);
    sum += x[i];
  }
  return sum;
}

}  // namespace kvant
