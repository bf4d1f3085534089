// The memory that this process occupies now.
#pragma once

#include <cstdint>

namespace kvant {

// Return all resident bytes, and those of mapped files only. 0 means unknown.
std::int64_t resident_bytes();
std::int64_t resident_file_bytes();

}  // namespace kvant
