// Computes the logistic function, and its product with the argument as a gate. Networks, delta nets and
// experts share the functions, which are fast and never overflow.
#pragma once

namespace kvant {

float sigmoid(float x);

// Computes x_i <- x_i sigmoid(slope x_i) for i in [0, n). With slope 1, the function is SiLU (Elfwing et al.
// 2017).
void gated_sigmoid(float* x, int n, float slope);

}  // namespace kvant
