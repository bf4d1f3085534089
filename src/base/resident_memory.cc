#include "base/resident_memory.h"

#include <unistd.h>

#include <fstream>

namespace kvant {
namespace {

// Reads a column of /proc/self/statm, which counts pages, and converts it to bytes.
std::int64_t pages_in(int column) {
  std::ifstream file("/proc/self/statm");
  std::int64_t pages = 0;
  for (int i = 0; i <= column; ++i)
    if (!(file >> pages)) return 0;
  return pages * sysconf(_SC_PAGESIZE);
}

}  // namespace

std::int64_t resident_bytes() {
  return pages_in(1);
}

std::int64_t resident_file_bytes() {
  return pages_in(2);
}

}  // namespace kvant
