#include "bench/last_level_cache.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>

namespace kvant {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kGuess = std::int64_t{32} << 20;

std::string word_in(const fs::path& path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

int number_in(const fs::path& path) {
  int number = 0;
  std::ifstream(path) >> number;
  return number;
}

// Returns the bytes of a size such as "32768K". Returns 0 for any other text.
std::int64_t size_in(const fs::path& path) {
  std::int64_t number = 0;
  char unit = 0;
  std::ifstream(path) >> number >> unit;
  return unit == 'K' ? number << 10 : unit == 'M' ? number << 20 : 0;
}

// Describes the caches of one level. A list of processors is mapped to the bytes of the cache that these
// processors share.
using Caches = std::map<std::string, std::int64_t>;

// Adds the caches of one processor to the caches of their levels.
void add_caches(const fs::path& processor, std::map<int, Caches>& levels) {
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(processor / "cache", failure)) {
    const int level = number_in(entry.path() / "level");
    const std::int64_t bytes = size_in(entry.path() / "size");
    if (level > 0 && bytes > 0) levels[level][word_in(entry.path() / "shared_cpu_list")] = bytes;
  }
}

}  // namespace

std::int64_t last_level_cache_bytes(const std::string& processors) {
  std::map<int, Caches> levels;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(processors, failure)) {
    if (entry.path().filename().string().starts_with("cpu")) add_caches(entry.path(), levels);
  }
  if (levels.empty()) return kGuess;
  const Caches& last = levels.rbegin()->second;
  return std::accumulate(last.begin(), last.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& cache) { return sum + cache.second; });
}

}  // namespace kvant
