// What this process may use of the machine: its processors and its memory, by affinity and control groups.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>

namespace kvant {

// The processors that the system lets this process run on.
std::set<int> allowed_processors();

// How many threads can compute at the same time: one for each core that has an allowed processor, and no more
// than the control groups have time for (a part of a processor counts as one); 1 at least. root: "/", or for
// tests a folder with the same files in proc/self and sys.
int usable_threads(const std::set<int>& processors, const std::filesystem::path& root = "/");
int usable_threads();

// Bytes that new allocations can have now: what the machine has available, and no more than each control
// group has left, where files in memory that can be dropped count as free. 0: unknown.
std::int64_t available_memory_bytes(const std::filesystem::path& root = "/");

}  // namespace kvant
