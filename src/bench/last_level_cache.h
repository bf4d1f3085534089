// Finds the size of the processor's caches, which the working set of a memory benchmark must exceed. The size
// comes from Linux's description of the processors.
#pragma once

#include <cstdint>
#include <string>

namespace kvant {

// Returns the bytes of the last-level caches of all cores together, as Linux reports them in
// /sys/devices/system/cpu. Without a report, returns a typical value for a small server.
std::int64_t last_level_cache_bytes(const std::string& processors = "/sys/devices/system/cpu");

}  // namespace kvant
