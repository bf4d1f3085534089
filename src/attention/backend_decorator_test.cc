// Checks that a decorated backend serves pages as the backend does alone.
#include <gtest/gtest.h>

#include "attention/attention_fixture.h"

namespace kvant {
namespace {

class Decorated final : public BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;
  void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) override {
    inner().run_layer(step, layer, rows, team);
  }
};

TEST(BackendDecorator, AgreesWithTheBackendInsideOnEverything) {
  for (const char* name : {"reference", "cpu"}) {
    const auto backend = make_backend(name);
    ASSERT_TRUE(backend.ok());
    Decorated decorated(**backend);
    EXPECT_EQ(decorated.page_order(), (*backend)->page_order()) << name;
    const Geometry geometry = testing::small_geometry(64, 6, 2, 2);
    const auto plan = testing::plan_for("k=tok4g128,v=ch4g128,v@1=gear4-ch4g128,skip=0.01", geometry, nullptr,
                                        (*backend)->page_order());
    Cache cache(plan, 0);
    const SequenceId s = cache.add();
    const auto source = [](int layer, int head, int kind, int token) {
      return testing::token_values(layer, head, kind, token, 64);
    };
    testing::attend_tokens(cache, s, 400, true, source, decorated);
    for (int layer = 0; layer < 2; ++layer) {
      for (const Side side : kSides) {
        const KernelChoice inside = (*backend)->kernel(*plan, layer, 0, side);
        const KernelChoice outside = decorated.kernel(*plan, layer, 0, side);
        EXPECT_EQ(outside.name, inside.name);
        EXPECT_EQ(outside.fallback, inside.fallback);
      }
    }
    const auto inside = (*backend)->skip_counts(), outside = decorated.skip_counts();
    ASSERT_EQ(outside.size(), 2U) << name;
    ASSERT_EQ(inside.size(), 2U);
    for (int layer = 0; layer < 2; ++layer) EXPECT_EQ(outside[layer].seen, inside[layer].seen);
    EXPECT_GT(inside[0].seen, 0);
  }
}

}  // namespace
}  // namespace kvant
