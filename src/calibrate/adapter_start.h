// Initial weights for the training of KVLinC's adapters.
#pragma once

#include <cstdint>
#include <span>

#include "calibrate/adapter_loss.h"

namespace kvant {

// Random weights that correct almost nothing. Plain random weights give every sealed key a weight of about 4
// / D. A thousand keys then outweigh the strongest one, and softmaxes of such weights are slow to learn
// silence. Here phi_q concentrates on a quarter of the features, chosen by the queries' mean, and phi_k
// avoids these features. It avoids them more strongly the more the correction would weigh: in training
// context 0 the start adds at most a fiftieth to the loss.
AdapterWeights quiet_start(std::span<const AdapterContext> training, int n_query_heads, int features,
                           std::uint64_t seed);

}  // namespace kvant
