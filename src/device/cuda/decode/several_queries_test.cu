// Compares decode attention for several queries of a sequence with attention in double precision. Cases vary
// the number of columns, which decides the kernel, and the lengths of sequences.
#include <gtest/gtest.h>

#include "device/cuda/common/limits.h"
#include "device/cuda/test/decode_test_cache.h"
#include "device/cuda/test/format_pairs.h"
#include "device/cuda/test/kernel_path.h"
#include "kvant/kvant.h"

namespace kvant::cuda::several_queries_test {
namespace {

constexpr double kTolerance = 0.005;  // relative RMS error

// Describes the number of query heads per KV head and the number of queries per sequence.
struct Asked {
  int group, queries;
};
// The cases have 2 to 32 columns in one launch, and some need several launches. In some cases, one head's
// columns lie in two warps.
constexpr Asked kAsked[] = {{1, 2}, {1, 8}, {2, 2}, {4, 2}, {3, 3}, {4, 4}, {8, 2}, {4, 8}, {7, 5}, {12, 3}};

class SeveralQueries : public ::testing::TestWithParam<std::tuple<FormatPair, int>> {
 protected:
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << "no GPU";
    std::tie(pair_, d_) = GetParam();
    plain_ = is_unquantized(pair_);
  }
  // Moves the tokens of sealed pages to the tail if the cache is unquantized, because an unquantized cache
  // has no sealed pages.
  std::vector<SequenceLengths> with(std::vector<SequenceLengths> lengths) const {
    if (plain_)
      for (SequenceLengths& l : lengths) l = {0, l.tail + 128 * l.sealed, l.n_protected};
    return lengths;
  }
  void expect_exact(TestCache& cache, const Asked& asked, kvant_type out_type = KVANT_F32) const {
    const double error = cache.worst_error(asked.group, out_type);
    std::printf("  %s + %s, d = %d, group %d, %d queries: relative error %.5f\n", pair_.key, pair_.value, d_,
                asked.group, asked.queries, error);
    EXPECT_LE(error, kTolerance) << "group " << asked.group << ", " << asked.queries << " queries";
  }

  FormatPair pair_{};
  int d_ = 0;
  bool plain_ = false;
};

// Tails end within a page, at the end of a page and after it. A page's end lies within the queries' own
// tokens or before them. One sequence has fewer tokens than there are queries.
TEST_P(SeveralQueries, AgreeOnRaggedSequencesWithSinkAndTail) {
  for (const Asked& asked : kAsked) {
    TestCache cache({pair_}, d_,
                    with({{1, 9, 4}, {9, 127, 4}, {0, 0, 0}, {0, 3, 0}, {2, 131, 4}, {23, 12, 4}}),
                    plain_ ? 0 : 4, false, Tables::own, Values::normal, 5);
    cache.ask(asked.queries);
    expect_exact(cache, asked);
  }
}

TEST_P(SeveralQueries, AgreeWhereSequencesHaveAsManyAsTheyLike) {
  for (const Asked& asked : {Asked{4, 4}, Asked{2, 3}, Asked{4, 8}, Asked{12, 4}}) {
    TestCache cache({pair_}, d_, with({{1, 9, 0}, {9, 127, 0}, {3, 40, 0}, {0, 13, 0}, {30, 128, 0}}), 0,
                    false, Tables::shared, Values::normal, 5);
    cache.ask(asked.queries, {2, asked.queries, 0, 1, asked.queries - 1});
    expect_exact(cache, asked, KVANT_BF16);
  }
}

TEST_P(SeveralQueries, AgreeWithProtectedTokensMasked) {
  if (plain_) GTEST_SKIP() << "has no sealed pages";
  TestCache cache({pair_}, d_, {{3, 64, 130}, {60, 8, 7}}, 4, true, Tables::own, Values::normal, 5);
  cache.ask(3);
  expect_exact(cache, {4, 3});
}

// Values are so large that the products of weights with scales or gains would overflow in half precision.
TEST_P(SeveralQueries, AgreeOnLoudValues) {
  for (const float loudness : {170.0F, 10000.0F}) {
    const Values values = loudness < 1000 ? Values::outliers : Values::normal;
    for (const Asked& asked : {Asked{4, 4}, Asked{4, 8}}) {
      TestCache cache({pair_}, d_, with({{20, 40, 5}, {3, 0, 0}}), 0, false, Tables::own, values, 5,
                      loudness);
      cache.ask(asked.queries);
      expect_exact(cache, asked);
    }
  }
}

TEST_P(SeveralQueries, AgreeOnWhatAModelMade) {
  if (d_ > kCapturedChannels) GTEST_SKIP() << "the model's heads are smaller";
  for (const Asked& asked : {Asked{4, 4}, Asked{4, 8}, Asked{8, 3}}) {
    TestCache cache({pair_}, d_, with({{20, 140, 0}, {3, 100, 0}}), 0, false, Tables::own, Values::captured,
                    5);
    cache.ask(asked.queries);
    expect_exact(cache, asked);
  }
}

// Scores repeatedly exceed the largest earlier score by a wide margin, so warps must raise their reference.
TEST_P(SeveralQueries, AgreeWhereScoresAreSharp) {
  constexpr double kInherent = 0.01;  // relative RMS error of the formats with scores this sharp
  for (const Asked& asked : {Asked{4, 2}, Asked{4, 4}, Asked{4, 8}}) {
    TestCache cache({pair_}, d_, with({{40, 40, 0}, {9, 5, 0}}), 0, false, Tables::own, Values::normal, 5);
    cache.sharpen(2);
    cache.ask(asked.queries);
    const double error = cache.worst_error(asked.group, KVANT_F32);
    std::printf("  %s + %s, d = %d, group %d, %d queries, sharp: relative error %.5f\n", pair_.key,
                pair_.value, d_, asked.group, asked.queries, error);
    EXPECT_LE(error, kInherent);
  }
}

// Windows begin in sealed pages and in the tail. In some sequences, a window begins in one page for the first
// queries and in the next page for the last queries.
TEST_P(SeveralQueries, AgreeWithWindowsCapsAndSinkLogits) {
  for (const bool capped : {false, true}) {
    for (const Asked& asked : {Asked{4, 2}, Asked{3, 4}, Asked{4, 8}}) {
      TestCache cache({pair_}, d_, with({{1, 12, 0}, {0, 128, 0}, {0, 300, 0}, {5, 133, 0}, {0, 9, 0}}), 0,
                      false, Tables::own, Values::normal, 5);
      cache.hide({126 + asked.queries, 100, 126 + asked.queries, 129, 1});
      cache.add_sink_logits();
      if (capped) cache.cap_scores(1.5F);
      cache.ask(asked.queries);
      expect_exact(cache, asked);
    }
  }
}

TEST_P(SeveralQueries, AreAppendedAndRotated) {
  for (const bool ragged : {false, true}) {
    for (const Asked& asked : {Asked{4, 2}, Asked{3, 4}}) {
      TestCache cache({pair_}, d_, with({{4, 133, 0}, {2, 9, 0}, {0, 129, 0}, {1, 2, 0}}), 0, false,
                      Tables::own, Values::normal, 5);
      cache.append_last(KVANT_F32, /*rotated=*/true);
      cache.rotate_outputs();
      cache.ask(asked.queries, ragged ? std::vector<int>{asked.queries, 0, 2, 1} : std::vector<int>{});
      expect_exact(cache, asked);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, SeveralQueries,
                         ::testing::Combine(::testing::ValuesIn(kPairs),
                                            ::testing::ValuesIn(kHeadDimsUpTo256)),
                         [](const auto& info) {
                           return name_of(std::get<0>(info.param), std::get<1>(info.param));
                         });

TEST(SeveralQueriesOfMixedHeads, Agree) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  for (const Asked& asked : {Asked{4, 2}, Asked{4, 8}, Asked{12, 5}}) {
    TestCache cache({{"lm4", "lm4"}, {"ch4g128", "tok2g128"}, {"tcq3", "tcq2"}}, 128,
                    {{1, 9, 4}, {33, 127, 4}, {0, 3, 0}, {130, 64, 7}}, 4, true, Tables::packed,
                    Values::normal, 6);
    cache.ask(asked.queries);
    EXPECT_LE(cache.worst_error(asked.group, KVANT_F32), kTolerance) << asked.group << ", " << asked.queries;
  }
}

TEST(SeveralQueriesWithSas, Agree) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  for (const FormatPair& pair : {FormatPair{"prog4", "prog4"}, FormatPair{"tcq3", "tcq3"}}) {
    TestCache cache({pair}, 128, {{9, 127, 4}, {30, 33, 4}}, 4, true, Tables::own, Values::normal, 6);
    cache.sharpen(0.25);
    cache.ask(4);
    EXPECT_LE(cache.worst_error(4, KVANT_F32, Softmax::sas, Softmax::sas), kTolerance) << pair.key;
  }
}

// The kernel that skips values serves only launches in which one warp has all columns.
TEST(SeveralQueriesThatSkipValues, Agree) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  for (const Asked& asked : {Asked{4, 2}, Asked{4, 4}}) {
    TestCache cache({{"ch4g128", "tok4g128"}}, 128, {{9, 27, 4}, {130, 3, 4}}, 4, true, Tables::own,
                    Values::normal, 6);
    cache.skip_below(1e-30F);
    cache.ask(asked.queries);
    EXPECT_LE(cache.worst_error(asked.group, KVANT_F32), kTolerance) << asked.queries;
    EXPECT_EQ(cache.skip_counts()[0] > 0, asked.queries == 2);
  }
}

TEST(SeveralQueriesApi, NamesTheKernelByColumns) {
  kvant_decode_shape shape{sizeof shape, 1, 1, 4, 128, 1.0F, "ch4g128", "tok4g128"};
  shape.skip_threshold = 1e-6F;
  shape.max_queries = 2;
  EXPECT_EQ(kvant_decode_kernel(&shape), kernel_path() + "ch4g128+tok4g128 skipping values");
  shape.max_queries = 3;
  EXPECT_EQ(kvant_decode_kernel(&shape), kernel_path() + "ch4g128+tok4g128");
}

TEST(SeveralQueriesApi, RefusesWhatItCannotRun) {
  kvant_decode_shape shape{sizeof shape, 1, 1, 4, 128, 1.0F, "ch4g128", "tok4g128"};
  for (const int wrong : {-1, 9}) {
    shape.max_queries = wrong;
    EXPECT_EQ(kvant_decode_kernel(&shape), nullptr) << wrong;
    EXPECT_NE(std::string(kvant_last_error()).find("shape.max_queries"), std::string::npos);
  }
  shape.max_queries = 2;
  shape.corrected = 1;
  EXPECT_EQ(kvant_decode_kernel(&shape), nullptr);
  EXPECT_NE(std::string(kvant_last_error()).find("shape.max_queries"), std::string::npos);
}

}  // namespace
}  // namespace kvant::cuda::several_queries_test
