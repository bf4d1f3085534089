// Computes the training loss of KVLinC's correction adapters and its gradient (KVLinC, section 3.2). Training
// minimizes this loss with Adam.
#pragma once

#include <vector>

#include "recipe/constant_needs.h"

namespace kvant {

// AdapterWeights are the weights of one KV head's maps phi(x) = [softmax(x W1), softmax(x W2)]. The weights
// have the layout of the constants kQueryAdapter and kKeyAdapter.
struct AdapterWeights {
  std::vector<float> key;    // [2][d][D / 2]
  std::vector<float> query;  // [G][2][d][D / 2]
};

// AdapterContext is one context of one KV head: `n` keys, and `m` queries of each of the G query heads. Row g
// * m + i belongs to query i of head g.
struct AdapterContext {
  int head_dim = 0;            // called d in formulas
  int n = 0;                   // keys in the context
  int m = 0;                   // queries per head
  std::vector<float> errors;   // [end of the last query, d], K - K_q, as stored
  std::vector<float> queries;  // [G * m, d], unscaled, as attention multiplies them by stored keys
  // [m], ascending. Keys [first, end) are sealed for query i and are therefore corrected.
  std::vector<int> first, end;
  std::vector<float> exponentials;  // [G * m, n], exp(s - M) of the quantized scores s; 0 where the key is
                                    // not visible
  std::vector<float> targets;       // [G * m, n], the weights of unquantized attention
  std::vector<float> scale;         // [G * m], the correction's c, including the shift of e^(s - M)
};

// Returns the mean Kullback-Leibler divergence over all queries, sum_i A_i log(A_i / B_i). A are the full
// weights, and B_i = (exp(s_i - M) + c phi_q(q) . phi_k(e_i)) / sum are the corrected ones. The divergence is
// KVLinC's cross-entropy minus a constant. `features` is D, which must be even. If `gradient` is not null, it
// receives the derivatives.
double adapter_loss(const AdapterContext& context, const AdapterWeights& weights, int features,
                    AdapterWeights* gradient);

// Returns the loss without any correction.
double uncorrected_loss(const AdapterContext& context);

}  // namespace kvant
