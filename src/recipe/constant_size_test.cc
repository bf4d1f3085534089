#include "recipe/constant_size.h"

#include <gtest/gtest.h>

#include "recipe/stand_in_constants.h"

namespace kvant {
namespace {

// Returns the bytes of constants for 2 layers with d = 64, each with 2 KV heads and 3 query heads per KV
// head.
std::int64_t bytes_of(const std::string& text) {
  Geometry g;
  g.model = "test";
  g.n_layers = 2;
  g.n_heads = 6;
  g.n_kv_heads = 2;
  g.head_dim = 64;
  g.sliding_window.assign(g.n_layers, 0);
  const auto recipe = parse_recipe(text);
  EXPECT_TRUE(recipe.ok()) << text;
  const auto plan = resolve(*recipe, g, stand_in_constants(*recipe, g));
  EXPECT_TRUE(plan.ok()) << text;
  return constant_bytes(**plan);
}
constexpr int kHeadCount = 2 * 2, kSideCount = 2;

TEST(ConstantBytes, OfRecipesWithoutConstantsAreNone) {
  EXPECT_EQ(bytes_of("bf16"), 0);
  EXPECT_EQ(bytes_of("k=rhadamard:lm4,v=rhadamard:lm4,sink=4"), 0);
}

TEST(ConstantBytes, LeaveOutWhatOnlyChoseTheFormats) {
  EXPECT_EQ(bytes_of("kvant-3bit,encode=plain"), 0);
  EXPECT_EQ(bytes_of("k=ch4g128,v=tok4g128,mix=0.5,mix_k=ch2g128"), 0);
}

TEST(ConstantBytes, CountCodebooksAsKernelsReadThem) {
  // Each head and side has 2^12 centroids of 8 bytes with one F32 scale.
  EXPECT_EQ(bytes_of("k=vq-d8b12,v=vq-d8b12"), kHeadCount * kSideCount * (4096 * 8 + 4));
  // MILLION's codebooks have no INT8 table. Each of 64 / 4 sub-spaces has 2^8 centroids of 4 F32 numbers.
  EXPECT_EQ(bytes_of("k=pq-d4b8,v=bf16"), kHeadCount * 16 * 256 * 4 * 4);
}

TEST(ConstantBytes, CountTheMetricOfShapedKeys) {
  EXPECT_EQ(bytes_of("k=hadamard:tcq2,v=hadamard:tcq2,encode=shaped"), kHeadCount * 64 * (8 + 2) * 4);
  EXPECT_EQ(bytes_of("k=tok4g32,v=tcq2,encode=shaped"), 0);
  EXPECT_EQ(bytes_of("kvant-3bit"), kHeadCount * 64 * (8 + 2) * 4);
}

TEST(ConstantBytes, CountTransformsAdaptersAndTheScalesOfATail) {
  EXPECT_EQ(bytes_of("k=smooth+hadamard:tok4g32s,v=tok4g32s"), kHeadCount * 64 * 4);
  EXPECT_EQ(bytes_of("k=prog4,v=prog4,tail=int8"), kHeadCount * kSideCount * 4);
  // W1 and W2 are [64][128], for the KV head and for each of its 3 query heads.
  EXPECT_EQ(bytes_of("k=ch2g128,v=tok2g128,correction=relative"), kHeadCount * (1 + 3) * 2 * 64 * 128 * 4);
}

}  // namespace
}  // namespace kvant
