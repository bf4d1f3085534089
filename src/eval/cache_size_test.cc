#include "eval/cache_size.h"

#include <gtest/gtest.h>

#include "cache/cache_fixture.h"

namespace kvant {
namespace {

std::int64_t measured(const std::shared_ptr<const Plan>& plan, int n_tokens) {
  Cache cache(plan, 0);
  const SequenceId sequence = cache.add();
  EXPECT_TRUE(cache.fill_synthetic(sequence, n_tokens, 1).ok());
  const CacheBytes bytes = cache.bytes(sequence);
  return bytes.all();
}

TEST(PredictedCacheBytes, AreWhatTheCacheTakes) {
  const Geometry geometry = testing::small_geometry();
  for (const char* recipe :
       {"bf16", "k=ch4g128,v=tok4g128", "k=ch2g128,v=tok2g128,window=256", "k=tok4g32s,v=fp8,sink=4",
        "k=ch4g128,v=tok4g128,sink=128,window=128", "k=tok8g32s,v=tok3g64,k@1=ch4g64,v@0.1=bf16",
        "k=ch2g128,v=tok2g128,window=128,correction=relative,correction_layers=1"}) {
    const auto plan = testing::plan_for(recipe, geometry);
    for (const int n : {0, 1, 127, 128, 129, 300, 640}) {
      // Token lists and masks of protected tokens, some bytes a head, are left out of the prediction.
      const std::int64_t lists = plan->recipe.sink > 0 ? 4 * (64 + 4 * plan->recipe.sink) : 0;
      EXPECT_LE(predicted_cache_bytes(*plan, n), measured(plan, n)) << recipe << " " << n;
      EXPECT_GE(predicted_cache_bytes(*plan, n) + lists, measured(plan, n)) << recipe << " " << n;
    }
  }
}

TEST(PredictedCacheBytes, ASlidingWindowStopsTheirGrowth) {
  Geometry geometry = testing::small_geometry();
  geometry.sliding_window[0] = 256;
  const auto plan = testing::plan_for("k=ch4g128,v=tok4g128", geometry);
  for (const int n : {100, 256, 257, 640, 1000}) {
    EXPECT_EQ(predicted_cache_bytes(*plan, n), measured(plan, n)) << n;
  }
  EXPECT_LT(cache_bytes_by_layer(*plan, 1024)[0], cache_bytes_by_layer(*plan, 1024)[1]);
}

TEST(Bf16Bytes, CountsBothSidesOfEveryHead) {
  const Geometry geometry = testing::small_geometry(/*head_dim=*/64, 6, /*n_kv_heads=*/2, /*n_layers=*/2);
  EXPECT_EQ(bf16_bytes(geometry, 10), 10 * 2 * 2 * 64 * 2 * 2);
}

}  // namespace
}  // namespace kvant
