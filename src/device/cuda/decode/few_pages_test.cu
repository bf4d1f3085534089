// Compares decode attention with attention in double precision. Callers announce few pages per CTA, so
// several warps share each page.
#include <gtest/gtest.h>

#include "device/cuda/common/limits.h"
#include "device/cuda/test/decode_test_cache.h"
#include "device/cuda/test/format_pairs.h"
#include "kvant/kvant.h"

namespace kvant::cuda::few_pages_test {
namespace {

constexpr double kTolerance = 0.005;  // relative RMS error

class FewPages : public ::testing::TestWithParam<std::tuple<FormatPair, int>> {
 protected:
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << "no GPU";
  }
  // The sequences have more pages than the kernels for short sequences accept, so another kernel must run.
  template <class Prepare>
  void expect_exact(int group, const Prepare& prepare, int sink = 4, bool masks = false) {
    const auto& [pair, d] = GetParam();
    const int n_protected = masks ? 70 : 0;
    TestCache cache({pair}, d,
                    {{65, 9, n_protected}, {1, 127, n_protected}, {0, 3, 0}, {33, 140, n_protected}}, sink,
                    masks, Tables::own, Values::normal, 5);
    cache.say_lengths();
    prepare(cache);
    const double error = cache.worst_error(group, KVANT_F32);
    EXPECT_FALSE(cache.was_short());
    std::printf("  %s + %s, d = %d, group %d: relative error %.5f\n", pair.key, pair.value, d, group, error);
    EXPECT_LE(error, kTolerance);
  }
};

constexpr auto kAsItIs = [](TestCache&) {};

TEST_P(FewPages, AgreeOnRaggedSequences) {
  for (const int group : {1, 4, 7, 12}) expect_exact(group, kAsItIs);
}
TEST_P(FewPages, AgreeWithProtectedTokensMasked) {
  expect_exact(4, kAsItIs, 4, /*masks=*/true);
}
TEST_P(FewPages, AgreeWithWindowsAndSinkLogits) {
  expect_exact(
      4,
      [](TestCache& cache) {
        cache.hide({127, 100, 1, 64});
        cache.add_sink_logits();
      },
      /*sink=*/0);
}
TEST_P(FewPages, AppendRotatedTokensAndRotateOutputsBack) {
  expect_exact(4, [](TestCache& cache) {
    cache.use_queries(KVANT_F32);
    cache.append_last(KVANT_F32, /*rotated=*/true);
    cache.rotate_outputs();
  });
}

// Returns the pairs that have a FewPagesKernel.
std::vector<FormatPair> shared_pairs() {
  return {
      {"ch4g128", "tok4g128"}, {"ch2g128", "tok2g128"}, {"tcq4", "tcq4"}, {"tcq3", "tcq2"}, {"tcq1", "tcq6"}};
}

INSTANTIATE_TEST_SUITE_P(Formats, FewPages,
                         ::testing::Combine(::testing::ValuesIn(shared_pairs()), ::testing::Values(64, 128)),
                         [](const auto& info) {
                           return name_of(std::get<0>(info.param), std::get<1>(info.param));
                         });

}  // namespace
}  // namespace kvant::cuda::few_pages_test
