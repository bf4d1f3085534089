// Makes the map of the transforms `smooth` and `scale`. The map divides channels by factors and multiplies
// queries by the same factors, so it does not change scores.
#pragma once

#include "transform/transform.h"

namespace kvant {

// Makes the map x -> x diag(1/f), q -> q diag(f), where the factors f [d] are the constants called
// `constant_name`. Factors below 1e-3 of the largest factor are raised to that limit, so a dead channel is
// not amplified. If all factors are zero, each counts as 1.
Result<std::unique_ptr<TransformStep>> make_channel_scaling(int head_dim, const HeadConstants& constants,
                                                            const std::string& constant_name);

}  // namespace kvant
