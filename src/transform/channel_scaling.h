// The map behind `smooth` and `scale`: channels divided by factors.
#pragma once

#include "transform/transform.h"

namespace kvant {

// x -> x diag(1/f), q -> q diag(f). The factors f [d] are the constants called `constant_name`. Factors below
// 1e-3 of the largest are raised to that, so that a dead channel isn't blown up; all zero stands for all one.
Result<std::unique_ptr<TransformStep>> make_channel_scaling(int head_dim, const HeadConstants& constants,
                                                            const std::string& constant_name);

}  // namespace kvant
