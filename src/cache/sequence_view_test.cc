#include "cache/sequence_view.h"

#include <gtest/gtest.h>

#include <numeric>

#include "cache/cache_fixture.h"
#include "cache/device_layout.h"
#include "cache/synthetic_sequence.h"
#include "cache/testing/host_pages.h"

namespace kvant {
namespace {

using Kind = PageRun::Kind;

std::string text_of(const std::vector<PageRun>& runs) {
  std::string text;
  for (const PageRun& run : runs)
    text += fmt::format("{}{}{} ", page_kind_name(run.kind), run.shared ? "+" : "", run.n_pages);
  return text;
}

std::int64_t sum(const std::vector<std::int64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

// The formats' definitions give the expected bytes. A page of ch4g128 has 128 d codes of 4 bits, and two f16
// for each channel. A page of tok2g64 has 128 d codes of 2 bits, and two f16 for each 64 channels of a token.
// Unsealed tokens are bf16.
TEST(SequenceView, CountsTheBytesOfEverySideByTheFormatsDefinitions) {
  const Geometry g = testing::small_geometry();
  Cache cache(testing::plan_for("k=ch4g128,v=tok2g64,sink=4", g), 0);
  const SequenceId s = cache.add();
  ASSERT_TRUE(testing::append_tokens(cache, s, 3 * 128 + 20).ok());
  const SequenceView view = view_sequence(cache, s);
  constexpr int d = 64, kSink = 4 * d * 2, kTail = 32 * d * 2;  // The tail grows in steps of 16 tokens.
  const std::int64_t k = 3 * (128 * d / 2 + d * 4) + kSink + kTail;
  const std::int64_t v = 3 * (128 * d / 4 + 128 * 4) + kSink + kTail;
  EXPECT_EQ(view.k_bytes, std::vector<std::int64_t>(4, k));
  EXPECT_EQ(view.v_bytes, std::vector<std::int64_t>(4, v));
  EXPECT_EQ(view.n_tokens, 404);
  EXPECT_EQ(text_of(view.pages), "sealed3 tail1 ");
  EXPECT_EQ(cache.page_bytes_in_use(), 4 * (k + v));
}

// The heads have different formats. On a device, the tail has whole pages, and the sink has tiles of 16
// tokens.
TEST(SequenceView, CountsTheBytesOfUnlikeHeadsOnADevice) {
  const auto plan = place_on(
      std::make_shared<testing::HostPages>(),
      testing::plan_for("k=ch4g128,v=tok2g64,k@0.0=ch2g128,v@1.1=tok8g64,sink=4", testing::small_geometry()));
  ASSERT_TRUE(plan.ok());
  Cache cache(*plan, 0);
  const SequenceId s = cache.add();
  ASSERT_TRUE(fill_synthetic(cache, s, 3 * 128 + 20, 1).ok());
  const SequenceView view = view_sequence(cache, s);
  constexpr std::int64_t d = 64, kUnsealed = (128 + 16) * d * 2, kOfChannels = d * 4, kOfTokens = 128 * 4;
  const std::int64_t k = 3 * (128 * d / 2 + kOfChannels) + kUnsealed,
                     v = 3 * (128 * d / 4 + kOfTokens) + kUnsealed;
  EXPECT_EQ(view.k_bytes, (std::vector<std::int64_t>{k - 3 * 128 * d / 4, k, k, k}));
  EXPECT_EQ(view.v_bytes, (std::vector<std::int64_t>{v, v, v, v + 3 * 128 * d * 6 / 8}));
  EXPECT_EQ(text_of(view.pages), "sealed3 tail1 ");
}

TEST(SequenceView, ShowsWhatTheWindowKeepsAndWhatIsShared) {
  Cache cache(testing::plan_for("kivi-4bit", testing::small_geometry()), 0);
  const SequenceId s = cache.add();
  ASSERT_TRUE(testing::append_tokens(cache, s, 4 * 128 + 60).ok());
  EXPECT_EQ(text_of(view_sequence(cache, s).pages), "sealed3 tail2 ");
  const SequenceId fork = *cache.fork(s);
  ASSERT_TRUE(testing::append_tokens(cache, fork, 1, /*is_prompt=*/false).ok());
  EXPECT_EQ(cache.sequences(), (std::vector<SequenceId>{s, fork}));
  EXPECT_EQ(text_of(view_sequence(cache, s).pages), "sealed+3 tail+1 tail1 ");
}

TEST(SequenceView, ShowsPagesThatSlidingWindowsHaveFreed) {
  Geometry g = testing::small_geometry();
  Cache cache(testing::plan_for("ch4g128/tok4g128", g), 0);
  g.sliding_window.assign(g.n_layers, 200);
  Cache sliding(testing::plan_for("ch4g128/tok4g128", g), 0);
  g.sliding_window[0] = 0;
  Cache partly(testing::plan_for("ch4g128/tok4g128", g), 0);
  for (Cache* c : {&cache, &sliding, &partly}) ASSERT_TRUE(testing::append_tokens(*c, c->add(), 600).ok());
  EXPECT_EQ(text_of(view_sequence(cache, 0).pages), "sealed4 tail1 ");
  EXPECT_EQ(text_of(view_sequence(sliding, 0).pages), "freed3 sealed1 tail1 ");
  EXPECT_EQ(text_of(view_sequence(partly, 0).pages), "sealed4 tail1 ");
}

class SequenceViewOfRecipe : public ::testing::TestWithParam<std::string> {};

TEST_P(SequenceViewOfRecipe, AddsUpToTheBytesOfTheCache) {
  Cache cache(testing::plan_for(GetParam(), testing::small_geometry()), 0);
  const SequenceId first = cache.add();
  ASSERT_TRUE(testing::append_tokens(cache, first, 3 * 128).ok());
  const SequenceId second = *cache.fork(first);
  for (int i = 0; i < 70; ++i) ASSERT_TRUE(testing::append_tokens(cache, second, 1, false).ok());
  std::int64_t pages = 0, all = 0;
  for (const SequenceId s : cache.sequences()) {
    const SequenceView view = view_sequence(cache, s);
    pages += sum(view.k_bytes) + sum(view.v_bytes);
    all += view.bytes.all();
    int n_pages = 0;
    for (const PageRun& run : view.pages) n_pages += run.n_pages;
    EXPECT_EQ(n_pages, (view.n_tokens + 127) / 128);
  }
  std::int64_t lists = 0;  // Scores, lists and sums are no pages.
  cache.pages(first).for_each_page([&](const HeldPage& page) {
    if (page.shared && page.name.object != nullptr) lists += page.bytes;
  });
  // Pages that two sequences share count once in the whole cache, with either way to count.
  EXPECT_EQ(all - cache.bytes().all(), pages - cache.page_bytes_in_use() + lists);
}

INSTANTIATE_TEST_SUITE_P(Recipes, SequenceViewOfRecipe,
                         ::testing::Values("kvant-4bit", "kvant-2bit", "vecinfer-2bit", "turboattention-mix",
                                           "kvlinc-2bit", "vquant-k4v2", "h2o-50", "fp8"));

}  // namespace
}  // namespace kvant
