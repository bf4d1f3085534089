// The texts embedded in the program: data/calibration/*.txt for calibration, and data/sample/canals.txt to
// evaluate on text that calibration has not seen.
#pragma once

#include <string>

namespace kvant {

// Returns all files of data/calibration, in the order of their names, separated by blank lines.
std::string default_calibration_text();

// Returns a text of which nothing is in the calibration text.
std::string held_out_text();

}  // namespace kvant
