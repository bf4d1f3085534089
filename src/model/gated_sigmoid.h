// The logistic function, and what it gates.
#pragma once

namespace kvant {

float sigmoid(float x);

// x_i <- x_i sigmoid(slope x_i) for i in [0, n): SiLU (Elfwing et al. 2017) where slope is 1.
void gated_sigmoid(float* x, int n, float slope);

}  // namespace kvant
