#include "kvtc/kvtc_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "base/float16.h"
#include "cache/cache_fixture.h"
#include "recipe/recipe_fixture.h"

namespace kvant {
namespace {

// Returns turns of neighbouring channels: pair i of layer l turns by 2^-(i + l + 3) of a full turn per token.
std::vector<std::vector<ChannelTurn>> some_turns(const Geometry& g) {
  std::vector<std::vector<ChannelTurn>> turns(g.n_layers);
  for (int layer = 0; layer < g.n_layers; ++layer)
    for (int i = 0; i < g.dim(layer) / 2; ++i)
      turns[layer].push_back({2 * i, 2 * i + 1, (std::uint64_t{1} << 61) >> (i + layer)});
  return turns;
}

struct Sequence {
  Geometry geometry = testing::small_geometry(16);
  std::shared_ptr<const Plan> plan = testing::plan_for("k=bf16,v=bf16,sink=4,tail=bf16", geometry);
  KvtcRows rows = KvtcRows::make(plan, some_turns(geometry)).value();
  Cache cache{plan, 0};

  std::vector<std::byte> bytes(int n_tokens) {
    const SequenceId s = cache.add();
    EXPECT_TRUE(testing::append_tokens(cache, s, n_tokens).ok());
    return cache.export_sequence(s).value();
  }
};

TEST(KvtcRows, HoldsAllHeadsWithKeysTurnedBack) {
  Sequence s;
  const Geometry& g = s.geometry;
  const auto bytes = s.bytes(300);
  ASSERT_EQ(s.rows.sealed_pages(bytes), 2);
  ASSERT_EQ(s.rows.width(), g.n_layers * g.n_kv_heads * 16);
  std::vector<float> rows(static_cast<std::size_t>(kPageTokens) * s.rows.width());
  for (const Side side : kSides) {
    s.rows.read(bytes, /*page=*/1, side, rows.data());
    for (const int token : {128, 200, 255}) {
      const float* row = &rows[static_cast<std::size_t>(token - 128) * s.rows.width()];
      for (int layer = 0; layer < g.n_layers; ++layer) {
        for (int h = 0; h < g.n_kv_heads; ++h) {
          std::vector<float> x = testing::token_values(layer, h, static_cast<int>(side), token, 16);
          for (float& value : x) value = float_from_bf16(bf16_from_float(value));
          for (int i = 0; side == Side::key && i < 8; ++i) {
            const double angle = -2 * std::numbers::pi * token * std::ldexp(1.0, -(i + layer + 3));
            const double a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
            x[2 * i + 1] = static_cast<float>(a * std::sin(angle) + b * std::cos(angle));
          }
          for (int c = 0; c < 16; ++c) EXPECT_NEAR(row[(layer * g.n_kv_heads + h) * 16 + c], x[c], 1e-4);
        }
      }
    }
  }
}

TEST(KvtcRows, GoBackWhereTheyCameFrom) {
  Sequence s;
  const auto bytes = s.bytes(400);
  auto written = bytes;
  std::vector<float> rows(static_cast<std::size_t>(kPageTokens) * s.rows.width());
  for (int page = 0; page < 3; ++page) {
    for (const Side side : kSides) {
      s.rows.read(bytes, page, side, rows.data());
      s.rows.write(rows.data(), page, side, written);
    }
  }
  // Turning K back and forth rounds values to bf16 again, which changes the last bit of a few values.
  ASSERT_EQ(bytes.size(), written.size());
  std::size_t unlike = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) unlike += bytes[i] != written[i];
  EXPECT_LT(unlike, bytes.size() / 100);
  std::fill(rows.begin(), rows.end(), 1.0F);
  s.rows.write(rows.data(), 1, Side::value, written);
  const SequenceId back = s.cache.import_sequence(written).value();
  EXPECT_EQ(s.cache.export_sequence(back).value(), written);
  std::vector<float> read(rows.size());
  s.rows.read(written, 1, Side::value, read.data());
  EXPECT_EQ(read, rows);
}

TEST(KvtcRows, RefusesOtherCaches) {
  const Geometry g = testing::small_geometry(64);
  for (const char* recipe : {"k=bf16,v=tok4g32", "k=hadamard:bf16,v=bf16"}) {
    const auto refused = KvtcRows::make(testing::plan_for(recipe, g), some_turns(g));
    ASSERT_FALSE(refused.ok()) << recipe;
    EXPECT_NE(refused.error().message.find("bf16"), std::string::npos);
  }
  const Geometry sliding = testing::unlike_layers();
  const auto refused = KvtcRows::make(testing::plan_for("bf16", sliding), some_turns(sliding));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("layer 1 slides"), std::string::npos);
}

}  // namespace
}  // namespace kvant
