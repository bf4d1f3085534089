#include "cache/schedule.h"

#include <gtest/gtest.h>

#include "base/geometry.h"
#include "recipe/recipe.h"

namespace kvant {
namespace {

TEST(Schedule, APromptAdvancesInBlocksOfOnePage) {
  const std::vector<Tile> tiles = schedule(0, 300, {.is_prompt = true, .prefill = 128});
  ASSERT_EQ(tiles.size(), 3U);
  EXPECT_EQ(tiles[0].append_end, 128);
  EXPECT_EQ(tiles[0].end_sealed, 1);
  EXPECT_EQ(tiles[1].query_first, 128);
  EXPECT_EQ(tiles[1].n_sealed, 1);
  EXPECT_EQ(tiles[1].end_sealed, 2);
  EXPECT_EQ(tiles[2].query_end, 300);
  EXPECT_EQ(tiles[2].end_sealed, 2);
}

TEST(Schedule, ALargerBlockIsAppendedWholeBeforeItsFirstQuery) {
  const std::vector<Tile> tiles = schedule(0, 512, {.is_prompt = true, .prefill = 256});
  ASSERT_EQ(tiles.size(), 4U);
  EXPECT_EQ(tiles[0].append_end, 256);
  EXPECT_EQ(tiles[0].query_end, 128);
  EXPECT_EQ(tiles[0].end_sealed, 0);
  EXPECT_EQ(tiles[1].append_first, tiles[1].append_end);
  EXPECT_EQ(tiles[1].n_sealed, 0);
  EXPECT_EQ(tiles[1].end_sealed, 2);
}

TEST(Schedule, AWholePromptSealsOnlyBeforeDecoding) {
  for (const Tile& tile : schedule(0, 1000, {.is_prompt = true, .prefill = kPrefillAll}))
    EXPECT_EQ(tile.end_sealed, 0);
  EXPECT_EQ(schedule(1000, 1, {.is_prompt = true, .prefill = kPrefillAll, .n_sealed = 3})[0].n_sealed, 3);
  EXPECT_EQ(schedule(1000, 1, {.prefill = kPrefillAll, .window = 128})[0].n_sealed, 6);
}

// In a sequence that was cut back, more pages are sealed than its length demands.
TEST(Schedule, UnsealsNothing) {
  for (const Tile& tile : schedule(600, 200, {.prefill = 128, .window = 256, .n_sealed = 4})) {
    EXPECT_EQ(tile.n_sealed, 4);
    EXPECT_EQ(tile.end_sealed, 4);
  }
}

TEST(Schedule, DoesNotDependOnWhereAPromptIsCut) {
  for (const int prefill : {128, 256}) {
    const auto sealed_in = [&](int first, int n, int n_sealed, std::vector<int>& sealed) {
      const TileRules rules{.is_prompt = true, .prefill = prefill, .window = 128, .n_sealed = n_sealed};
      for (const Tile& t : schedule(first, n, rules)) sealed.push_back(t.end_sealed);
    };
    std::vector<int> whole;
    sealed_in(0, 700, 0, whole);
    for (const int cut : {128, 256, 384}) {
      std::vector<int> parts;
      sealed_in(0, cut, 0, parts);
      sealed_in(cut, 700 - cut, parts.back(), parts);
      EXPECT_EQ(parts, whole) << prefill << " cut at " << cut;
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
    if (tile.end_sealed > tile.n_sealed) sealed_at.push_back(tile.query_end);
  }
  EXPECT_EQ(next, 300);
  EXPECT_EQ(sealed_at, (std::vector<int>{128, 256}));
}

}  // namespace
}  // namespace kvant
