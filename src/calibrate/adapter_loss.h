// The training loss of KVLinC's correction adapters, with its gradient (KVLinC, section 3.2).
#pragma once

#include <vector>

#include "recipe/constant_needs.h"

namespace kvant {

// The weights of one KV head's maps phi(x) = [softmax(x W1), softmax(x W2)], in the layout of the constants
// kQueryAdapter and kKeyAdapter.
struct AdapterWeights {
  std::vector<float> key;    // [2][d][D / 2]
  std::vector<float> query;  // [G][2][d][D / 2]
};

// One context of one KV head: `n` keys, and `m` queries of each of its G query heads. Row g * m + i belongs
// to query i of head g.
struct AdapterContext {
  int head_dim = 0;            // d
  int n = 0;                   // keys
  int m = 0;                   // queries per head
  std::vector<float> errors;   // [end of the last query, d]: K - K_q, as stored
  std::vector<float> queries;  // [G * m, d]: unscaled, as multiplied with stored keys
  // [m], ascending: keys [first, end) are sealed for query i and therefore corrected
  std::vector<int> first, end;
  std::vector<float> exponentials;  // [G * m, n]: exp(s - M) of the quantized scores s; 0 where not visible
  std::vector<float> targets;       // [G * m, n]: weights of unquantized attention
  std::vector<float> scale;         // [G * m]: the correction's c, including the shift of e^(s - M)
};

// Returns the mean over all queries of the Kullback-Leibler divergence sum_i A_i log(A_i / B_i) between the
// full weights A and the corrected weights B_i = (exp(s_i - M) + c phi_q(q) . phi_k(e_i)) / sum. This is the
// cross-entropy minus a constant. features: D, even. gradient: null, or receives the derivatives.
double adapter_loss(const AdapterContext& context, const AdapterWeights& weights, int features,
                    AdapterWeights* gradient);

// The loss without any correction.
double uncorrected_loss(const AdapterContext& context);

}  // namespace kvant
