#include "generate/speculation_pace.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>

namespace kvant {
namespace {

Draft draft_of(int n, double odds) {
  return {std::vector<std::int32_t>(n, 1), std::vector<double>(n, odds)};
}

int chosen(SpeculationPace& pace, int n, double odds, int most_rows = 32) {
  const Draft draft = draft_of(n, odds);
  return pace.choose({&draft, 1}, most_rows).front();
}

SpeculationPace measured(const std::function<double(int)>& seconds) {
  SpeculationPace pace;
  for (int i = 0; i < 4; ++i) {
    for (const int rows : {1, 2, 3, 4, 6, 8, 12, 16}) pace.add(rows, seconds(rows));
  }
  return pace;
}

TEST(SpeculationPace, DraftsNothingBeforeAStepWithoutDraftsWasMeasured) {
  SpeculationPace pace;
  EXPECT_EQ(chosen(pace, 8, 1.0), 0);
}

TEST(SpeculationPace, TriesLargerStepsByAndByOnceItKnowsThePlainOne) {
  SpeculationPace pace;
  for (int i = 0; i < 3; ++i) pace.add(1, 0.01);
  for (const int drafted : {3, 7, 15}) {
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(chosen(pace, 15, 0.9), drafted);
      pace.add(1 + drafted, 0.0105);
    }
  }
}

// A row costs as much as a step, and no drafted token is right, whatever its odds. Each rejected row then
// costs the time of a token.
TEST(SpeculationPace, WastesLessThanOneTokenInAHundredWhereDraftsDoNotPay) {
  for (const double odds : {0.3, 0.6, 0.9, 0.99}) {
    SpeculationPace pace;
    int n_tokens = 0, n_rejected = 0;
    for (; n_tokens < 20'000; ++n_tokens) {
      const int drafted = chosen(pace, 15, odds);
      pace.add(1 + drafted, 0.01 * (1 + drafted));
      n_rejected += drafted;
    }
    EXPECT_LT(n_rejected, n_tokens / 100) << odds;
  }
}

// A device builds a graph in the first step of a size and records the graph in the second step. Rows are
// cheap.
class DevicePace : public ::testing::Test {
 protected:
  static constexpr double kPlain = 0.0028, kBuild = 0.045, kRecord = 0.006;

  double step(int rows) {
    const int n = seen_[rows]++;
    const double seconds = kPlain * (1 + 0.02 * (rows - 1)) + (n == 0 ? kBuild : n == 1 ? kRecord : 0.0);
    pace_.add(rows, seconds);
    return seconds;
  }

  SpeculationPace pace_;
  std::map<int, int> seen_;
};

// The text hardly repeats itself. One token of 40 has a draft, and the draft is wrong.
TEST_F(DevicePace, BuildsNoGraphForATextWithFewDrafts) {
  double seconds = 0;
  for (int token = 0; token < 500; ++token)
    seconds += step(token % 40 == 39 ? 1 + chosen(pace_, 15, 0.3) : 1);
  EXPECT_LE(seconds, 1.02 * (500 * kPlain + kBuild + kRecord));
}

TEST_F(DevicePace, BuildsGraphsForATextThatIsCopied) {
  double seconds = 0;
  for (int token = 0; token < 1500;) {
    const int drafted = chosen(pace_, 15, 0.95);
    seconds += step(1 + drafted);
    token += 1 + drafted;
  }
  // Steps of 1, 4, 8 and 16 rows have to be built, and drafts wait a quarter of that time for each.
  const double copied = 1500.0 / 16 * kPlain * 1.3, built = 4 * 1.25 * (kBuild + kRecord);
  EXPECT_LE(seconds, copied + built + 20 * kPlain);
}

// One draft of two is right, which pays where rows are cheap. The slow second step must not hide that.
TEST_F(DevicePace, JudgesASizeByStepsThatFollowItsFirstTwo) {
  for (int i = 0; i < 40; ++i) step(1);
  for (int i = 0; i < 100; ++i) step(1 + chosen(pace_, 15, 0.5));
  EXPECT_GT(chosen(pace_, 15, 0.5), 0);
}

TEST(SpeculationPace, TakesTheNumberWithMostTokensASecond) {
  // The best number k of drafted tokens maximizes tokens(k) / seconds(1 + k), over the measured sizes.
  const auto seconds = [](int rows) { return 0.010 + 0.003 * (rows - 1); };
  SpeculationPace pace = measured(seconds);
  for (const double odds : {0.2, 0.5, 0.7, 0.9, 0.99}) {
    double best_rate = 1.05 / seconds(1);
    int best = 0;
    for (const int rows : {2, 3, 4, 6, 8, 12, 16}) {
      double tokens = 1, so_far = 1;
      for (int i = 1; i < rows; ++i) tokens += so_far *= odds;
      if (tokens / seconds(rows) <= best_rate) continue;
      best_rate = tokens / seconds(rows);
      best = rows - 1;
    }
    EXPECT_EQ(chosen(pace, 15, odds), best) << odds;
  }
}

TEST(SpeculationPace, IsOffWhereRowsCostAsMuchAsSteps) {
  SpeculationPace pace = measured([](int rows) { return 0.01 * rows; });
  EXPECT_EQ(chosen(pace, 15, 0.95), 0);
}

TEST(SpeculationPace, PrefersTheSequenceWhoseDraftIsLikelier) {
  SpeculationPace pace = measured([](int rows) { return 0.010 + 0.0005 * (rows - 1); });
  const std::vector<Draft> drafts = {draft_of(6, 0.3), draft_of(6, 0.95)};
  const std::vector<int> counts = pace.choose(drafts, 6);
  EXPECT_GT(counts[1], counts[0]);
  EXPECT_LE(counts[0] + counts[1], 4);
}

// A sequence without a draft must wait for the rows of the other sequences' drafts.
TEST(SpeculationPace, DelaysOthersByAQuarterAtMost) {
  const auto seconds = [](int rows) { return 0.010 + 0.001 * rows; };
  SpeculationPace pace = measured(seconds);
  const std::vector<Draft> drafts = {draft_of(15, 0.99), Draft()};
  const int rows = 2 + pace.choose(drafts, 32).front();
  EXPECT_GT(rows, 2);
  EXPECT_LE(seconds(rows), 1.25 * seconds(2));
}

TEST(SpeculationPace, TriesASizeAgainAfterALongTime) {
  SpeculationPace pace = measured([](int rows) { return 0.01 * rows; });
  for (int i = 0; i < 2000; ++i) pace.add(1, 0.01);
  EXPECT_GT(chosen(pace, 15, 0.95), 0);
}

}  // namespace
}  // namespace kvant
