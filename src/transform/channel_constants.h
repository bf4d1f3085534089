// Constants with one number a channel, as calibrated steps need them.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "transform/constants.h"

namespace kvant {

// The array [head_dim] called `name`. Fails when it is missing (the message says to calibrate), has another
// size, or holds a number that isn't finite.
Result<std::vector<float>> channel_constants(const HeadConstants& constants, const std::string& name,
                                             int head_dim);

}  // namespace kvant
