// The map behind `smooth` and `scale`, which divides channels by factors.
#pragma once

#include "transform/transform.h"

namespace kvant {

// The map is x -> x diag(1/f), q -> q diag(f), where the factors f [d] are the constants called
// `constant_name`. Factors below 1e-3 of the largest are raised to that, so a dead channel isn't amplified.
// If all factors are zero, they count as ones.
Result<std::unique_ptr<TransformStep>> make_channel_scaling(int head_dim, const HeadConstants& constants,
                                                            const std::string& constant_name);

}  // namespace kvant
