#include "bench/last_level_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace kvant {
namespace {

namespace fs = std::filesystem;

class LastLevelCache : public ::testing::Test {
 protected:
  LastLevelCache() { fs::create_directories(folder_); }
  ~LastLevelCache() override { fs::remove_all(folder_); }

  void add(int processor, int index, int level, const std::string& size, const std::string& shared_by) {
    const fs::path cache =
        folder_ / ("cpu" + std::to_string(processor)) / "cache" / ("index" + std::to_string(index));
    fs::create_directories(cache);
    std::ofstream(cache / "level") << level << "\n";
    std::ofstream(cache / "size") << size << "\n";
    std::ofstream(cache / "shared_cpu_list") << shared_by << "\n";
  }

  fs::path folder_ = fs::temp_directory_path() / ("kvant_llc_" + std::to_string(getpid()));
};

TEST_F(LastLevelCache, AddsUpTheCachesOfTheLastLevelOnce) {
  for (int processor = 0; processor < 4; ++processor) {
    add(processor, 0, 1, "48K", std::to_string(processor));
    add(processor, 1, 2, "1024K", std::to_string(processor));
    add(processor, 2, 3, "32768K", processor < 2 ? "0-1" : "2-3");
  }
  EXPECT_EQ(last_level_cache_bytes(folder_.string()), std::int64_t{2} * 32768 * 1024);
}

TEST_F(LastLevelCache, IsGuessedWhereNothingIsSaid) {
  EXPECT_GT(last_level_cache_bytes(folder_.string()), 1 << 20);
  EXPECT_GT(last_level_cache_bytes((folder_ / "missing").string()), 1 << 20);
}

}  // namespace
}  // namespace kvant
