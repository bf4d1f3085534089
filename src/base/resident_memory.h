// What this process has in memory now.
#pragma once

#include <cstdint>

namespace kvant {

// Bytes of it, and of these the ones of mapped files. 0: unknown.
std::int64_t resident_bytes();
std::int64_t resident_file_bytes();

}  // namespace kvant
