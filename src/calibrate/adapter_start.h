// Makes the initial weights for the training of KVLinC's adapters. The training of softmaxes is slow to
// reduce a wrong correction, so the start corrects almost nothing.
#pragma once

#include <cstdint>
#include <span>

#include "calibrate/adapter_losses.h"

namespace kvant {

// Returns random weights that correct almost nothing. Plain random weights would give every sealed key a
// weight of about 4 / D. A thousand keys would then outweigh the strongest key, and training learns only
// slowly to reduce weights of softmaxes to nothing. In this start, phi_q concentrates on a quarter of the
// features, chosen by the mean query, and phi_k avoids these features. The avoidance is so strong that, in
// training context 0, the correction raises the loss by at most a fiftieth.
// `losses` computes the losses of `training`, and its errors are returned.
Result<AdapterWeights> quiet_start(std::span<const AdapterContext> training, int n_query_heads, int features,
                                   std::uint64_t seed, AdapterLosses& losses);

}  // namespace kvant
