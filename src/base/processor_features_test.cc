// Compares the features with the operating system's list of them.
#include "base/processor_features.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace kvant {
namespace {

// Returns the words of the first line of /proc/cpuinfo that lists features, or nothing if there is none.
std::set<std::string> listed_features() {
#if defined(__aarch64__)
  const std::string title = "Features";
#else
  const std::string title = "flags";
#endif
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(title)) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    std::set<std::string> features;
    for (std::string word; words >> word;) features.insert(word);
    return features;
  }
  return {};
}

TEST(ProcessorFeatures, AreThoseOfTheOperatingSystem) {
  const std::set<std::string> listed = listed_features();
  if (listed.empty()) GTEST_SKIP() << "/proc/cpuinfo lists no features of this processor";
  const ProcessorFeatures& has = processor_features();
  const auto is_listed = [&](const char* name) { return listed.contains(name); };
#if defined(__x86_64__)
  EXPECT_EQ(has.avx, is_listed("avx"));
  EXPECT_EQ(has.avx2, is_listed("avx2"));
  EXPECT_EQ(has.fma, is_listed("fma"));
  EXPECT_EQ(has.f16c, is_listed("f16c") && is_listed("avx2"));
  EXPECT_EQ(has.bmi2, is_listed("bmi2"));
  EXPECT_EQ(has.gfni, is_listed("gfni") && is_listed("avx2"));
  EXPECT_EQ(has.avxvnni, is_listed("avx_vnni"));
  EXPECT_EQ(has.avx512,
            is_listed("avx512f") && is_listed("avx512bw") && is_listed("avx512dq") && is_listed("avx512vl"));
  EXPECT_EQ(has.avx512_vnni, is_listed("avx512_vnni"));
  EXPECT_EQ(has.avx512_vbmi, is_listed("avx512vbmi"));
  EXPECT_EQ(has.avx512_vbmi2, is_listed("avx512_vbmi2"));
  EXPECT_EQ(has.avx512_bf16, is_listed("avx512_bf16"));
  EXPECT_FALSE(has.neon || has.dotprod || has.i8mm);
#elif defined(__aarch64__)
  EXPECT_EQ(has.neon, is_listed("asimd"));
  EXPECT_EQ(has.dotprod, is_listed("asimddp"));
  EXPECT_EQ(has.i8mm, is_listed("i8mm"));
  EXPECT_FALSE(has.avx || has.avx2 || has.avx512);
#endif
}

}  // namespace
}  // namespace kvant
