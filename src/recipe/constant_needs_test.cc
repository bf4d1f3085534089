#include "recipe/constant_needs.h"

#include <gtest/gtest.h>

#include "recipe/head_mix.h"

namespace kvant {
namespace {

using Names = std::vector<std::string>;

// Returns 2 layers with 3 query heads for each of 2 KV heads. The second layer has a sliding window.
Geometry two_layers() {
  Geometry geometry;
  geometry.n_layers = 2;
  geometry.n_heads = 6;
  geometry.n_kv_heads = 2;
  geometry.head_dim = 80;
  geometry.sliding_window = {0, 512};
  return geometry;
}

std::vector<ConstantNeed> needs(const std::string& text, int layer, int kv_head, Side side) {
  const auto recipe = parse_recipe(text);
  EXPECT_TRUE(recipe.ok()) << recipe.error().message;
  return constant_needs(*recipe, two_layers(), layer, kv_head, side);
}

Names names_of(const std::vector<ConstantNeed>& needs) {
  Names names;
  for (const ConstantNeed& need : needs) names.push_back(need.name);
  return names;
}

TEST(ConstantNeeds, AreNoneWhereNothingIsCalibrated) {
  for (Side side : kSides) {
    EXPECT_TRUE(needs("kivi-2bit,sink=4,protect=0.05,skip=1e-6", 0, 0, side).empty());
    EXPECT_TRUE(needs("quarot-4bit", 0, 0, side).empty());
  }
}

TEST(ConstantNeeds, ListTransformsThenFormatsBehindThem) {
  const auto of_k = needs("k=smooth+hadamard+mean:vq-d4b8,v=pq-d4b8", 0, 0, Side::key);
  ASSERT_EQ(names_of(of_k), (Names{"smooth", "smooth+hadamard+mean", "codebook/vq-d4b8"}));
  EXPECT_EQ(of_k[0].after, Names{});
  EXPECT_EQ(of_k[0].step, find_transform_kind("smooth"));
  EXPECT_EQ(of_k[0].size, 80U);
  EXPECT_EQ(of_k[1].after, (Names{"smooth", "hadamard"}));
  EXPECT_EQ(of_k[1].step, find_transform_kind("mean"));
  EXPECT_EQ(of_k[2].kind, NeedKind::format);
  EXPECT_EQ(of_k[2].after, (Names{"smooth", "hadamard", "mean"}));
  EXPECT_EQ(of_k[2].format, find_format("vq-d4b8"));
  EXPECT_EQ(of_k[2].size, 256U * 4);
  const auto of_v = needs("k=smooth+hadamard+mean:vq-d4b8,v=pq-d4b8", 0, 0, Side::value);
  ASSERT_EQ(names_of(of_v), Names{"codebook/pq-d4b8"});
  EXPECT_EQ(of_v[0].size, 256U * 80);
}

TEST(ConstantNeeds, HaveAMetricOfQueriesWhereErrorsOfKeysAreShaped) {
  const auto of_k = needs("k=hadamard:tcq2,v=hadamard:tcq2,encode=shaped", 0, 0, Side::key);
  ASSERT_EQ(names_of(of_k), Names{"page-metric"});
  EXPECT_EQ(of_k[0].kind, NeedKind::metric);
  EXPECT_EQ(of_k[0].size, 80U * (8 + 2));
  EXPECT_EQ(of_k[0].after, Names{"hadamard"});
  EXPECT_TRUE(is_optional(of_k[0].kind));
  EXPECT_TRUE(needs("k=hadamard:tcq2,v=hadamard:tcq2,encode=shaped", 0, 0, Side::value).empty());
  EXPECT_TRUE(needs("k=hadamard:tcq2,v=hadamard:tcq2", 0, 0, Side::key).empty());
  EXPECT_TRUE(needs("k=ch4g128,v=tcq2,encode=shaped", 0, 0, Side::key).empty());
  EXPECT_EQ(names_of(needs("kvant-2bit,encode=shaped", 0, 0, Side::key)).front(), "page-metric");
}

// A metric of a calibration is optional. A sampled metric is not, because each program can make it in
// seconds.
TEST(ConstantNeeds, RequireAMetricOfAShortTextWhereItIsSampled) {
  for (Recipe recipe : builtin_recipes()) {
    const auto of_side = [&](Encode encode, Side side) {
      recipe.encode = encode;
      auto found = constant_needs(recipe, two_layers(), 0, 0, side);
      std::erase_if(found, [](const ConstantNeed& need) { return need.name != "page-metric"; });
      return found;
    };
    const auto sampled = of_side(Encode::sampled, Side::key), shaped = of_side(Encode::shaped, Side::key);
    ASSERT_EQ(sampled.size(), shaped.size()) << recipe.name;
    EXPECT_TRUE(of_side(Encode::sampled, Side::value).empty()) << recipe.name;
    if (sampled.empty()) continue;
    EXPECT_EQ(sampled[0].kind, NeedKind::sampled_metric);
    EXPECT_FALSE(is_optional(sampled[0].kind));
    EXPECT_EQ(sampled[0].size, shaped[0].size);
    EXPECT_EQ(sampled[0].after, shaped[0].after);
  }
}

TEST(ConstantNeeds, FollowOverrides) {
  const std::string recipe = "kivi-2bit,k@1.1=pca:vq-d8b8";
  EXPECT_TRUE(needs(recipe, 1, 0, Side::key).empty());
  EXPECT_TRUE(needs(recipe, 1, 1, Side::value).empty());
  const auto found = needs(recipe, 1, 1, Side::key);
  ASSERT_EQ(names_of(found), (Names{"pca", "codebook/vq-d8b8"}));
  EXPECT_EQ(found[0].size, 80U * 80);
}

TEST(ConstantNeeds, CoverBothFormatsOfAMixedHead) {
  const std::string recipe = "vq-d4b8,mix=0.5,mix_metric=min-max,mix_k=vq-d8b8,mix_v=vq-d4b8";
  const auto of_k = needs(recipe, 0, 0, Side::key);
  ASSERT_EQ(names_of(of_k), (Names{"priority/min-max", "codebook/vq-d4b8", "codebook/vq-d8b8"}));
  EXPECT_EQ(of_k[0].kind, NeedKind::priority);
  EXPECT_EQ(of_k[0].size, 1U);
  EXPECT_EQ(names_of(needs(recipe, 0, 0, Side::value)), Names{"codebook/vq-d4b8"});
}

TEST(ConstantNeeds, CoverAdaptersOfFullAttentionLayers) {
  const auto found = needs("kivi-2bit,correction=relative", 0, 1, Side::key);
  ASSERT_EQ(names_of(found), (Names{"adapter/q", "adapter/k"}));
  // W1 and W2 are [d, D / 2] for each of the 3 query heads of the group.
  EXPECT_EQ(found[0].size, 3U * 2 * 80 * 128);
  EXPECT_EQ(found[1].size, 2U * 80 * 128);
  EXPECT_TRUE(needs("kivi-2bit,correction=relative", 0, 1, Side::value).empty());
  EXPECT_TRUE(needs("kivi-2bit,correction=relative", 1, 1, Side::key).empty());
  EXPECT_TRUE(needs("kivi-2bit,correction=relative,correction_layers=1", 0, 1, Side::key).empty());
}

TEST(ConstantNeeds, CoverEveryTailThatIsCalibrated) {
  for (const std::string& name : format_names()) {
    const Format* format = find_format(name);
    if (!format->row_wise() || format->needed_constants().empty()) continue;
    for (Side side : kSides) {
      const auto found = needs("kivi-2bit,tail=" + name, 1, 0, side);
      EXPECT_EQ(names_of(found), format->needed_constants()) << name;
      EXPECT_EQ(found[0].kind, NeedKind::tail) << name;
      EXPECT_EQ(found[0].size, format->constant_size(80)) << name;
    }
  }
}

}  // namespace
}  // namespace kvant
