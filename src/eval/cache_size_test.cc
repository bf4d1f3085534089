#include "eval/cache_size.h"

#include <gtest/gtest.h>

#include "attention/attention_fixture.h"
#include "cache/cache_fixture.h"
#include "cache/device_layout.h"
#include "cache/synthetic_sequence.h"
#include "cache/testing/host_pages.h"
#include "recipe/recipe_fixture.h"

namespace kvant {
namespace {

using testing::plan_for;

std::vector<float> row_of(int layer, int head, int kind, int token) {
  return testing::token_values(layer, head, kind, token, 32);
}

void expect_equal_parts(const CacheBytes& predicted, const CacheBytes& measured, const std::string& where) {
  EXPECT_EQ(predicted.sealed, measured.sealed) << where;
  EXPECT_EQ(predicted.protected_tokens, measured.protected_tokens) << where;
  EXPECT_EQ(predicted.sink, measured.sink) << where;
  EXPECT_EQ(predicted.tail, measured.tail) << where;
  EXPECT_EQ(predicted.sealed_elements, measured.sealed_elements) << where;
  EXPECT_EQ(predicted.elements, measured.elements) << where;
  EXPECT_EQ(predicted.recurrent, measured.recurrent) << where;
}

// Predicts the bytes of a sequence in which the text has selected as many tokens as in sequence `s` of the
// cache.
CacheBytes predicted_for(const Cache& cache, SequenceId s) {
  const Plan& plan = cache.plan();
  CacheBytes total;
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer) {
    for (int h = 0; h < plan.geometry.n_kv_heads; ++h) {
      const ProtectedTokens::Head& chosen = head_of(cache, s, layer, h).chosen();
      total += predicted_head_bytes(
          plan, layer, h, cache.length(s),
          {static_cast<int>(chosen.tokens.size()), static_cast<int>(chosen.masks.size())});
    }
  }
  return total;
}

class EveryProductRecipe : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Recipes, EveryProductRecipe, ::testing::ValuesIn(testing::product_recipes()));

// The prediction must be exact at each position of a page while a sequence grows one token at a time.
TEST_P(EveryProductRecipe, TakesTheBytesThatArePredicted) {
  const auto plan = plan_for(GetParam(), testing::small_geometry(/*head_dim=*/32, 2, /*n_kv_heads=*/1));
  const auto backend = make_reference_backend();
  Cache cache(plan, 0);
  const SequenceId s = cache.add();
  testing::attend_tokens(cache, s, 256, /*is_prompt=*/true, row_of, *backend);
  double bits = 0;
  while (cache.length(s) < 512) {
    testing::attend_tokens(cache, s, 1, /*is_prompt=*/false, row_of, *backend);
    if (cache.length(s) <= 384) continue;
    const CacheBytes measured = cache.bytes(s);
    expect_equal_parts(predicted_for(cache, s), measured, std::to_string(cache.length(s)));
    EXPECT_LE(measured.all(), predicted_cache_bytes(*plan, cache.length(s)));
    bits += 8.0 * static_cast<double>(measured.all()) / static_cast<double>(measured.elements) / kPageTokens;
    if (HasFailure()) return;
  }
  // mean_bits() and the cache's bytes both count the tokens that are selected at length 512. At this short
  // context, a single protected page affects the average, so recipes that protect tokens get a slack.
  const double slack = plan->recipe.protect > 0 ? 0.1 * bits : 1e-9;
  EXPECT_NEAR(mean_bits(*plan, 512, cache.bytes(s)).all, bits, slack);
  if (plan->recipe.protect == 0) {
    EXPECT_NEAR(mean_bits(*plan, 512).all, bits, 1e-9);
  }
}

CacheBytes measured(const std::shared_ptr<const Plan>& plan, int n_tokens) {
  Cache cache(plan, 0);
  const SequenceId sequence = cache.add();
  EXPECT_TRUE(fill_synthetic(cache, sequence, n_tokens, 1).ok());
  return cache.bytes(sequence);
}

TEST(PredictedBytes, AreWhatTheCacheTakes) {
  for (const char* recipe :
       {"bf16", "k=ch4g128,v=tok4g128", "k=ch2g128,v=tok2g128", "k=tok4g32s,v=fp8,sink=4",
        "k=ch4g128,v=tok4g128,sink=128", "k=tok8g32s,v=tok3g64,k@1=ch4g64,v@0.1=bf16",
        "k=hadamard:tcq2,v=hadamard:tcq2,sink=4,tail=tok8g32s",
        "k=ch2g128,v=tok2g128,correction=relative,correction_layers=1"}) {
    for (const Geometry& geometry : {testing::small_geometry(), testing::unlike_layers()}) {
      if (geometry.heads_differ() && std::string(recipe).find('@') != std::string::npos) continue;
      const auto plan = plan_for(recipe, geometry);
      for (const int n : {0, 1, 16, 17, 127, 128, 129, 300, 640})
        expect_equal_parts(predicted_bytes(*plan, n), measured(plan, n), recipe + std::to_string(n));
    }
  }
}

TEST(PredictedBytes, ASlidingWindowStopsTheirGrowth) {
  Geometry geometry = testing::small_geometry();
  geometry.sliding_window[0] = 256;
  const auto plan = plan_for("k=ch4g128,v=tok4g128", geometry);
  for (const int n : {100, 256, 257, 640, 1000}) {
    expect_equal_parts(predicted_bytes(*plan, n), measured(plan, n), std::to_string(n));
  }
  EXPECT_LT(cache_bytes_by_layer(*plan, 1024)[0], cache_bytes_by_layer(*plan, 1024)[1]);
}

// Layers without attention keep one state from before a step, one from after the step and one of a
// checkpoint. Bits per value count only what attention reads, so the bits must not change.
TEST(LargestCacheBytes, CountThreeRecurrentStates) {
  Geometry geometry = testing::small_geometry();
  const auto plain = plan_for("k=ch4g128,v=tok4g128", geometry);
  geometry.n_recurrent_layers = 1;
  geometry.recurrent_values = 1000;
  const auto hybrid = plan_for("k=ch4g128,v=tok4g128", geometry);
  EXPECT_EQ(largest_cache_bytes(hybrid, 300), largest_cache_bytes(plain, 300) + 3 * 4000);
  EXPECT_EQ(predicted_bytes(*hybrid, 300).recurrent, 4000);
  EXPECT_EQ(mean_bits(*hybrid, 300).all, mean_bits(*plain, 300).all);
  const auto device = std::make_shared<testing::HostPages>();
  EXPECT_EQ(largest_cache_bytes(place_on(device, hybrid).value(), 300),
            largest_cache_bytes(place_on(device, plain).value(), 300) + 3 * 4000);
}

// A step's four pages of K and V stay in the tail of a shared layer until the step ends.
TEST(LargestCacheBytes, CountTheTailsThatLayersShare) {
  Geometry geometry = testing::small_geometry();
  const auto plain = plan_for("k=ch4g128,v=tok4g128,tail=bf16", geometry);
  geometry.shared = {false, true};
  const auto sharing = plan_for("k=ch4g128,v=tok4g128,tail=bf16", geometry);
  EXPECT_EQ(largest_cache_bytes(sharing, 4096),
            largest_cache_bytes(plain, 4096) + 4 * 2 * geometry.n_kv_heads * 128 * geometry.head_dim * 2);
}

// On a device, tails take whole pages, and the size of each entry of sealed pages is rounded up to
// kDeviceUnit. Nothing else is rounded here, because pages of these formats take a multiple of 16 bytes.
TEST(LargestCacheBytes, AreThoseOfTheDeviceThatHoldsThePages) {
  const auto plan = plan_for("k=tok8g64,v=tok8g64,k@1.1=tok2g64,tail=bf16", testing::small_geometry());
  const auto placed = place_on(std::make_shared<testing::HostPages>(), plan).value();
  EXPECT_EQ(largest_cache_bytes(placed, 4096), largest_device_bytes(placed, 4096, {1, 512}));
  EXPECT_EQ(largest_cache_bytes(placed, 4096, 1024), largest_device_bytes(placed, 4096, {1, 1024}));
  EXPECT_GT(largest_cache_bytes(placed, 4096), largest_cache_bytes(plan, 4096));
  constexpr int kPagesMore = 128;
  const auto grown = [](const PlacedPlan& of) {
    return largest_cache_bytes(of, 4096 + kPagesMore * 128) - largest_cache_bytes(of, 4096);
  };
  EXPECT_GE(grown(placed), grown(plan));
  EXPECT_LT(grown(placed), grown(plan) + kPagesMore * static_cast<std::int64_t>(kDeviceUnit));
}

// The expected value is worked out by hand for the lengths 129 .. 256. K has 4.25 bits, V has 4.5 bits, and
// the tail has 16 bits in steps of 16 tokens.
TEST(MeanBits, AverageOverThePositionsOfAPage) {
  const auto plan = plan_for("k=ch4g128,v=tok4g128", testing::small_geometry());
  double sum = 0;
  for (int n = 129; n <= 256; ++n) {
    const int sealed = n == 256 ? 256 : 128, steps = (n - sealed + 15) / 16;
    sum += (sealed * 4.375 + steps * 16 * 16) / n;
  }
  EXPECT_NEAR(mean_bits(*plan, 256).all, sum / 128, 1e-9);
  EXPECT_NEAR(mean_bits(*plan, 256).sealed, 4.375, 1e-9);
  EXPECT_EQ(mean_cache_bytes(*plan, 256), std::llround(sum / 128 * 2 * 2 * 2 * 64 * 256 / 8));
  // The largest size during growth occurs at 255 tokens, because 127 tail tokens take the space of 128.
  EXPECT_EQ(largest_cache_bytes(plan, 256), 2 * 2 * 2 * 64 * (128 * 35 / 8 + 128 * 16) / 8);
}

TEST(MeanBits, OfAShortContextAverageOverWhatThereIs) {
  const auto plan = plan_for("k=ch4g128,v=tok4g128", testing::small_geometry());
  EXPECT_NEAR(mean_bits(*plan, 1).all, 16 * 16, 1e-9);
  EXPECT_NEAR(mean_bits(*plan, 2).all, (16 * 16 + 8 * 16) / 2.0, 1e-9);
  EXPECT_TRUE(std::isnan(mean_bits(*plan, 100).sealed));
}

TEST(Bf16Bytes, CountsBothSidesOfEveryHead) {
  const Geometry geometry = testing::small_geometry(/*head_dim=*/64, 6, /*n_kv_heads=*/2, /*n_layers=*/2);
  EXPECT_EQ(bf16_bytes(geometry, 10), 10 * 2 * 2 * 64 * 2 * 2);
  EXPECT_EQ(bf16_bytes(testing::unlike_layers(64, 32, 1, 4), 200), (200 * 64 + 150 * 4 * 32) * 2 * 2);
}

}  // namespace
}  // namespace kvant
