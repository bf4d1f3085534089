// Computes exp(x) for small x in loops that vectorize, because loops that call std::exp do not. Callers split
// off powers of two first, which leaves a small x.
#pragma once

namespace kvant {

// Returns exp(x) by Taylor's series of degree 6, whose relative error is below 2e-7 for |x| <= ln 2 / 2.
inline float exp_series(float x) {
  float p = 1.0F / 720;
  p = p * x + 1.0F / 120;
  p = p * x + 1.0F / 24;
  p = p * x + 1.0F / 6;
  p = p * x + 0.5F;
  p = p * x + 1.0F;
  return p * x + 1.0F;
}

}  // namespace kvant
