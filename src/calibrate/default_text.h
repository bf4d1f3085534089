// The text that ships with kvant for calibration: data/calibration/*.txt.
#pragma once

#include <string>

#include "base/result.h"

namespace kvant {

// All files in the order of their names, a blank line between them. They are looked for in the source tree
// that the program was built from, then where it is installed. An error names both places.
Result<std::string> default_calibration_text();

}  // namespace kvant
