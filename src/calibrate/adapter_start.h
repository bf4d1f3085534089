// Where the training of KVLinC's adapters starts.
#pragma once

#include <cstdint>
#include <span>

#include "calibrate/adapter_loss.h"

namespace kvant {

// Random weights that correct next to nothing. Plain random ones give every sealed key a weight of about 4 /
// D, so that a thousand keys drown the strongest one; and softmaxes of such weights learn slowly to be
// silent. Here phi_q leans on a quarter of the features, towards which the queries' mean points, and phi_k
// avoids these the more, the more the correction would weigh: in training context 0, the start adds at most a
// fiftieth to the loss.
AdapterWeights quiet_start(std::span<const AdapterContext> training, int n_query_heads, int features,
                           std::uint64_t seed);

}  // namespace kvant
