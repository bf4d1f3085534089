#include "cache/schedule.h"

#include <gtest/gtest.h>

#include "base/geometry.h"
#include "recipe/recipe.h"

namespace kvant {
namespace {

TEST(Schedule, APromptAdvancesInBlocksOfOnePage) {
  const std::vector<Tile> tiles = schedule(0, 300, {true, 128});
  ASSERT_EQ(tiles.size(), 3U);
  EXPECT_EQ(tiles[0].append_end, 128);
  EXPECT_EQ(tiles[0].seal_point, 128);
  EXPECT_EQ(tiles[1].query_first, 128);
  EXPECT_EQ(tiles[1].seal_point, 256);
  EXPECT_EQ(tiles[2].query_end, 300);
  EXPECT_EQ(tiles[2].seal_point, -1);
}

TEST(Schedule, ALargerBlockIsAppendedWholeBeforeItsFirstQuery) {
  const std::vector<Tile> tiles = schedule(0, 512, {true, 256});
  ASSERT_EQ(tiles.size(), 4U);
  EXPECT_EQ(tiles[0].append_end, 256);
  EXPECT_EQ(tiles[0].query_end, 128);
  EXPECT_EQ(tiles[0].seal_point, -1);
  EXPECT_EQ(tiles[1].append_first, tiles[1].append_end);
  EXPECT_EQ(tiles[1].seal_point, 256);
}

TEST(Schedule, AWholePromptSealsOnlyBeforeDecoding) {
  for (const Tile& tile : schedule(0, 1000, {true, kPrefillAll})) EXPECT_EQ(tile.seal_point, -1);
  EXPECT_EQ(seal_point_before(1000, true), -1);
  EXPECT_EQ(seal_point_before(1000, false), 1000);
}

TEST(Schedule, DoesNotDependOnWhereAPromptIsCut) {
  for (const int prefill : {128, 256}) {
    const std::vector<Tile> whole = schedule(0, 700, {true, prefill});
    for (const int cut : {128, 256, 384}) {
      std::vector<int> points;
      for (const Tile& t : schedule(0, cut, {true, prefill})) points.push_back(t.seal_point);
      for (const Tile& t : schedule(cut, 700 - cut, {true, prefill})) points.push_back(t.seal_point);
      std::vector<int> expected;
      for (const Tile& t : whole) expected.push_back(t.seal_point);
      EXPECT_EQ(points, expected) << prefill << " cut at " << cut;
    }
  }
}

TEST(Schedule, TilesOfOneDecodedTokenSealWherePagesDo) {
  std::vector<int> sealed_at;
  int next = 100;
  for (const Tile& tile : schedule(100, 200, {.prefill = 128, .decode_tile = 1})) {
    EXPECT_EQ(tile.append_first, next);
    EXPECT_EQ(tile.query_first, next);
    EXPECT_EQ(tile.append_end, ++next);
    EXPECT_EQ(tile.query_end, next);
    if (tile.seal_point >= 0) sealed_at.push_back(tile.seal_point);
  }
  EXPECT_EQ(next, 300);
  EXPECT_EQ(sealed_at, (std::vector<int>{128, 256}));
}

}  // namespace
}  // namespace kvant
