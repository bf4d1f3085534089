// Checks that a sequence continues bit for bit after its export from one cache and its import into another.
// The tests cover every product recipe and both orders of codes.
#include <gtest/gtest.h>

#include "attention/attention_fixture.h"
#include "recipe/recipe_fixture.h"

namespace kvant {
namespace {

using testing::attend_tokens;
using testing::contents;
using testing::Outputs;
using testing::plan_for;

constexpr int kSize = 32;

Geometry geometry() {
  Geometry g = testing::small_geometry(kSize, 4, 2, 2);
  g.sliding_window = {0, 150};
  return g;
}

class ExportedSequence : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Recipes, ExportedSequence, ::testing::ValuesIn(testing::product_recipes()));

// Continues the sequence across page ends, by prompts and by single tokens.
std::vector<Outputs> go_on(Cache& cache, SequenceId s, const testing::RowSource& row_of,
                           AttentionBackend& backend) {
  std::vector<Outputs> outputs;
  for (const int n : {1, 1, 150, 1}) outputs.push_back(attend_tokens(cache, s, n, n > 1, row_of, backend));
  return outputs;
}

// Exports a sequence of one cache and imports it into another.
void expect_same(AttentionBackend& backend, const std::string& recipe, const Geometry& g, PageOrder from,
                 PageOrder to) {
  Cache first(plan_for(recipe, g, nullptr, from), 0);
  Cache second(plan_for(recipe, g, nullptr, to), 0);
  const testing::RowSource row_of = [&g](int layer, int head, int kind, int token) {
    return testing::token_values(layer, head, kind, token, g.dim(layer));
  };
  const SequenceId s = first.add();
  second.add();  // The sequence numbers of the two caches then differ.
  attend_tokens(first, s, 400, true, row_of, backend);
  for (int i = 0; i < 90; ++i) attend_tokens(first, s, 1, false, row_of, backend);
  ASSERT_TRUE(first.truncate(s, 480).ok());
  const auto bytes = first.export_sequence(s);
  ASSERT_TRUE(bytes.ok());
  const auto imported = second.import_sequence(*bytes);
  ASSERT_TRUE(imported.ok()) << imported.error().message;
  EXPECT_EQ(second.length(*imported), 480);
  const auto again = second.export_sequence(*imported);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, *bytes);
  if (from == to) {
    EXPECT_EQ(contents(second, *imported), contents(first, s));
  }
  EXPECT_EQ(go_on(second, *imported, row_of, backend), go_on(first, s, row_of, backend));
  const CacheBytes held = second.bytes(*imported), expected = first.bytes(s);
  EXPECT_EQ(held.sealed, expected.sealed);
  EXPECT_EQ(held.protected_tokens, expected.protected_tokens);
  EXPECT_EQ(held.sink, expected.sink);
}

TEST_P(ExportedSequence, GoesOnBitForBit) {
  const auto reference = make_reference_backend();
  for (const PageOrder from : {PageOrder::canonical, PageOrder::lanes}) {
    for (const PageOrder to : {PageOrder::canonical, PageOrder::lanes})
      expect_same(*reference, GetParam(), geometry(), from, to);
  }
  const auto cpu = make_cpu_backend();
  expect_same(*cpu, GetParam(), geometry(), cpu->page_order(), cpu->page_order());
}

TEST_P(ExportedSequence, GoesOnBitForBitWhereLayersDiffer) {
  const auto reference = make_reference_backend();
  expect_same(*reference, GetParam(), testing::unlike_layers(32, 64), PageOrder::canonical, PageOrder::lanes);
}

TEST(ExportedSequences, AreRefusedByCachesOfAnotherShape) {
  Cache cache(plan_for("k=ch4g128,v=tok4g128", geometry()), 0);
  const SequenceId s = cache.add();
  ASSERT_TRUE(testing::append_tokens(cache, s, 300).ok());
  const std::vector<std::byte> bytes = *cache.export_sequence(s);
  Geometry wide = geometry();
  wide.head_dim = 64;
  Cache other_model(plan_for("k=ch4g128,v=tok4g128", wide), 0), other_recipe(plan_for("bf16", geometry()), 0);
  for (Cache* other : {&other_model, &other_recipe}) {
    const auto imported = other->import_sequence(bytes);
    ASSERT_FALSE(imported.ok());
    EXPECT_NE(imported.error().message.find("cannot import"), std::string::npos);
    EXPECT_EQ(other->bytes().all(), 0);
  }
  EXPECT_FALSE(cache.export_sequence(s + 1).ok());
}

}  // namespace
}  // namespace kvant
