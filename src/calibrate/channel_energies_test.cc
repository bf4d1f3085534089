#include "calibrate/channel_energies.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

// The expected values were computed by hand for keys (1, 2, 0, 1), (3, 0, 0, 1) and one query (2, 0, 4, 0).
// The mean squares are 5, 2, 0, 1 for keys, and 4, 0, 16, 0 for the query.
TEST(ChannelEnergies, AreHalfTheMeanSquaresOfKeysAndQueries) {
  const std::vector<float> keys = {1, 2, 0, 1, 3, 0, 0, 1}, queries = {2, 0, 4, 0};
  EXPECT_EQ(channel_energies({keys.data(), 2, 4}, {queries.data(), 1, 4}, {}),
            (std::vector<float>{4.5F, 1, 8, 0.5F}));
}

TEST(ChannelEnergies, AreAddedUpWhereRopeTurnsChannelsTogether) {
  const std::vector<float> keys = {1, 2, 0, 1, 3, 0, 0, 1}, queries = {2, 0, 4, 0};
  const std::vector<ChannelTurn> turns = {{0, 2, 1}};
  EXPECT_EQ(channel_energies({keys.data(), 2, 4}, {queries.data(), 1, 4}, turns),
            (std::vector<float>{12.5F, 1, 12.5F, 0.5F}));
}

}  // namespace
}  // namespace kvant
