// The size of the processor's caches: what a benchmark of memory must exceed.
#pragma once

#include <cstdint>
#include <string>

namespace kvant {

// Bytes of the last level of caches of all cores together, as the Linux folder of processors
// (/sys/devices/system/cpu) describes them; where it doesn't, a guess for a small server.
std::int64_t last_level_cache_bytes(const std::string& processors = "/sys/devices/system/cpu");

}  // namespace kvant
