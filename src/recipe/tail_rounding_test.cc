// Measures the rounding error of the tails of kvant's recipes for keys with large constant channels.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "format/format.h"
#include "recipe/builtin.h"
#include "recipe/plan.h"
#include "transform/transform.h"

namespace kvant {
namespace {

constexpr int kHeadDim = 128;

// Returns keys [kPageTokens, d] that resemble the keys of Qwen2's first layer. Every fifth channel has a
// constant of up to 300, and all channels have noise of 1.3.
std::vector<float> biased_keys() {
  std::mt19937 random(1);
  std::normal_distribution<float> noise(0, 1.3F);
  std::vector<float> keys(static_cast<std::size_t>(kPageTokens) * kHeadDim);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto channel = static_cast<int>(i % kHeadDim);
    keys[i] = (channel % 5 == 0 ? 300.0F - 4.6F * static_cast<float>(channel) : 0.0F) + noise(random);
  }
  return keys;
}

// Returns the mean squared rounding error of `format` for keys after `transforms`.
double rounding_error(const Format& format, const std::vector<std::string>& transforms) {
  const auto transform = Transform::make(transforms, kHeadDim, {});
  EXPECT_TRUE(transform.ok());
  std::vector<float> keys = biased_keys(), decoded(keys.size());
  transform->forward({keys.data(), kPageTokens, kHeadDim});
  PageContext context;
  context.head_dim = kHeadDim;
  std::vector<std::byte> page(format.page_bytes(kHeadDim));
  format.encode(keys.data(), {}, context, page.data());
  format.decode(page.data(), kPageTokens, context, decoded.data());
  double sum = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) sum += (keys[i] - decoded[i]) * (keys[i] - decoded[i]);
  return sum / static_cast<double>(keys.size());
}

// BF16 rows lose as much after the rotation as before it. An 8-bit tail (tok8g16) would lose 6.7 times as
// much.
TEST(Tails, OfKvantRecipesLoseNoMoreOfBiasedKeysThanUnquantizedRows) {
  Geometry geometry{.model = "biased", .n_layers = 1, .n_heads = 2, .n_kv_heads = 1, .head_dim = kHeadDim};
  geometry.sliding_window = {0};
  const double plain = rounding_error(*find_format("bf16"), {});
  for (const Recipe& recipe : builtin_recipes()) {
    if (!recipe.name.starts_with("kvant-")) continue;
    const auto plan = resolve(recipe, geometry, nullptr);
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    EXPECT_LT(rounding_error(*(*plan)->tail, recipe.k.transforms), 1.5 * plain) << recipe.name;
  }
}

}  // namespace
}  // namespace kvant
