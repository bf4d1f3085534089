// Measures the memory that this process occupies now. Calibration compares these numbers with its forecast.
#pragma once

#include <cstdint>

namespace kvant {

// resident_bytes() returns all resident bytes, and resident_file_bytes() returns the resident bytes of mapped
// files only. 0 means unknown.
std::int64_t resident_bytes();
std::int64_t resident_file_bytes();

}  // namespace kvant
