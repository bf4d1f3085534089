// Looks up constants that calibration must have made, for the transforms. If constants are missing, the error
// says how to make them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"
#include "transform/constants.h"

namespace kvant {

// Returns the constants [size] called `name`. Errors: no constants of that name (the message says to
// calibrate), another size, or a number that is not finite.
Result<std::span<const float>> calibrated_constants(const HeadConstants& constants, const std::string& name,
                                                    std::size_t size);

}  // namespace kvant
