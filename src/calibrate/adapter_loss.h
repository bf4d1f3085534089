// The loss that KVLinC's correction adapters are trained on, with its gradient (KVLinC, section 3.2).
#pragma once

#include <vector>

#include "recipe/constant_needs.h"

namespace kvant {

// The weights of one KV head's maps phi(x) = [softmax(x W1), softmax(x W2)], laid out as the constants that
// they become: see kQueryAdapter and kKeyAdapter.
struct AdapterWeights {
  std::vector<float> key;    // [2][d][D / 2]
  std::vector<float> query;  // [G][2][d][D / 2]
};

// One context of one KV head: `n` keys, and `m` queries of each of its G query heads. Row g * m + i belongs
// to query i of head g.
struct AdapterContext {
  int head_dim = 0;                 // d
  int n = 0;                        // keys
  int m = 0;                        // queries of a head
  std::vector<float> errors;        // [end of the last query, d]: K - K_q, as stored
  std::vector<float> queries;       // [G * m, d]: unscaled, as they meet stored keys
  std::vector<int> first, end;      // [m], ascending: keys [first, end) are sealed for query i: corrected
  std::vector<float> exponentials;  // [G * m, n]: exp(s - M) of the quantized scores s; 0 where not visible
  std::vector<float> targets;       // [G * m, n]: the weights of unquantized attention
  std::vector<float> scale;         // [G * m]: c of the correction, times e^(s - M)'s own shift
};

// The mean over all queries of the Kullback-Leibler divergence sum_i A_i log(A_i / B_i) of the corrected
// weights B_i = (exp(s_i - M) + c phi_q(q) . phi_k(e_i)) / sum from the full ones A: cross-entropy less a
// constant. features: D, even. gradient: null, or set to the derivatives.
double adapter_loss(const AdapterContext& context, const AdapterWeights& weights, int features,
                    AdapterWeights* gradient);

// The same without any correction.
double uncorrected_loss(const AdapterContext& context);

}  // namespace kvant
