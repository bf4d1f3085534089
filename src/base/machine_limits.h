// Returns the processors and the memory that this process may use. Affinity and control groups can allow less
// than the machine has, as in containers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>

namespace kvant {

// Returns the processors on which the system lets this process run.
std::set<int> allowed_processors();

// Returns how many threads can compute at the same time: one for each core that has an allowed processor. CPU
// quotas of control groups limit the number further, where a part of a processor counts as one. The result is
// at least 1. `root` is "/", or for tests a folder with the files of proc/self and sys.
int usable_threads(const std::set<int>& processors, const std::filesystem::path& root = "/");
int usable_threads();

// Returns how many bytes new allocations can take now. The number is the machine's free memory, limited by
// what each control group has left. File pages that the system can drop count as free. 0 means unknown.
std::int64_t available_memory_bytes(const std::filesystem::path& root = "/");

}  // namespace kvant
