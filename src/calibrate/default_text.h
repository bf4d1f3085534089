// The texts that ship inside the program: data/calibration/*.txt to calibrate on, data/sample/canals.txt to
// judge on what calibration has not seen.
#pragma once

#include <string>

namespace kvant {

// All files of data/calibration in the order of their names, a blank line between them.
std::string default_calibration_text();

// Nothing in it is in the calibration text.
std::string held_out_text();

}  // namespace kvant
