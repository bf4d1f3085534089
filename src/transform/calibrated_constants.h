// Looks up constants that calibration must have made, for the transforms. If constants are missing, the error
// says how to make them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"
#include "transform/constants.h"

namespace kvant {

// Returns the constants [size] called `name`. Returns an error if there are no such constants, if the size
// differs, or if a number is not finite. Without constants, the message tells the user to calibrate.
Result<std::span<const float>> calibrated_constants(const HeadConstants& constants, const std::string& name,
                                                    std::size_t size);

}  // namespace kvant
