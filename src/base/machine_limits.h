// The processors and the memory that this process may use, given affinity and control groups.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>

namespace kvant {

// Returns the processors on which the system lets this process run.
std::set<int> allowed_processors();

// Returns how many threads can compute at the same time: one for each core that has an allowed processor. The
// CPU quotas of control groups limit it further (a part of a processor counts as one); it is at least 1.
// root: "/", or for tests a folder with the same files in proc/self and sys.
int usable_threads(const std::set<int>& processors, const std::filesystem::path& root = "/");
int usable_threads();

// Returns the bytes that new allocations can have now: what is available on the machine, limited by what each
// control group has left. Droppable file pages count as free. 0 means unknown.
std::int64_t available_memory_bytes(const std::filesystem::path& root = "/");

}  // namespace kvant
