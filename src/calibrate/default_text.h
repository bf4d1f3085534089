// Returns texts that are embedded in the program. data/calibration/*.txt serve calibration.
// data/sample/canals.txt serves evaluation on a text that calibration has not seen.
#pragma once

#include <string>

namespace kvant {

// Returns all files of data/calibration in the order of their names, separated by blank lines.
std::string default_calibration_text();

// Returns a text that does not overlap with the calibration text.
std::string held_out_text();

}  // namespace kvant
