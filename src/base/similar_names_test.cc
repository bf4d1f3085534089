#include "base/similar_names.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

const std::vector<std::string> kKnown = {"window", "sink", "prefill", "k", "v"};

TEST(SimilarNames, PutsTheNearestFirst) {
  const auto names = similar_names("windw", kKnown, 3);
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names[0], "window");
}

TEST(SimilarNames, IgnoresCase) {
  EXPECT_EQ(similar_names("SINK", kKnown, 1), std::vector<std::string>{"sink"});
}

TEST(SimilarNames, LeavesOutWhatDoesNotResemble) {
  EXPECT_TRUE(similar_names("zzzzzzzzzz", kKnown, 3).empty());
  EXPECT_TRUE(similar_names("", kKnown, 3).empty());
  EXPECT_TRUE(similar_names(std::string(100000, 'w'), kKnown, 3).empty());
}

TEST(SimilarNames, GivesNoMoreThanAskedFor) {
  EXPECT_EQ(similar_names("sinc", std::vector<std::string>{"sink", "sing", "sick"}, 2).size(), 2U);
}

}  // namespace
}  // namespace kvant
