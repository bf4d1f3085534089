// Looks up constants that calibration must have made. If they are missing, the error says how to get them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"
#include "transform/constants.h"

namespace kvant {

// Returns the array [size] called `name`. Fails if it is missing (the message says to calibrate), has another
// size, or holds a number that isn't finite.
Result<std::span<const float>> calibrated_constants(const HeadConstants& constants, const std::string& name,
                                                    std::size_t size);

}  // namespace kvant
