// Compares output errors, skips and coverage with hand computations. The outputs of a scripted backend are
// known, and attention is computed in double precision.
#include "attention/output_error.h"

#include <gtest/gtest.h>

#include "attention/attention_fixture.h"

namespace kvant::output_error_test {
namespace {

using testing::attend_tokens;
using testing::kKeyRows;
using testing::kQueryRows;
using testing::plan_for;
using testing::RowSource;
using testing::small_geometry;

constexpr int kSize = 64;

// Runs a step of n tokens on the cache and on all shadows.
testing::Outputs run(Cache& cache, SequenceId s, int n, bool is_prompt, int first_measured,
                     OutputErrorBackend& backend, const RowSource& source, int n_threads = 1) {
  EXPECT_TRUE(backend.reserve(n, is_prompt, first_measured).ok());
  auto step = cache.reserve({{s, n, is_prompt}});
  EXPECT_TRUE(step.ok());
  testing::Outputs outputs = testing::run_step(**step, source, backend, n_threads);
  EXPECT_TRUE((*step)->commit().ok());
  EXPECT_TRUE(backend.commit().ok());
  return outputs;
}

std::vector<float> values_of(int layer, int head, int kind, int token) {
  return testing::token_values(layer, head, kind, token, kSize);
}

// Attends, but then writes 10 * layer + head + 1 to all outputs, or half of this number for every recipe but
// bf16.
class Scripted : public AttentionBackend {
 public:
  void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) override {
    inner_->run_layer(step, layer, rows, team);
    team.barrier();
    if (team.index() != 0) return;
    for (int r = 0; r < rows.out.rows; ++r) {
      for (int c = 0; c < rows.out.cols; ++c) {
        const int head = c / kSize;
        const auto exact = static_cast<float>(10 * layer + head + 1);
        rows.out.row(r)[c] = step.plan().recipe.k.format == "bf16" ? exact : exact / 2;
      }
    }
  }
  std::vector<SkipCount> skip_counts() const override { return inner_->skip_counts(); }
  PageOrder page_order() const override { return inner_->page_order(); }
  Result<PlacedPlan> place(std::shared_ptr<const Plan> plan) const override {
    return PlacedPlan(std::move(plan));
  }
  KernelChoice kernel(const Plan&, int, int, Side) const override { return {"scripted", ""}; }
  RowObserver* observer() override { return nullptr; }

 private:
  std::unique_ptr<AttentionBackend> inner_ = make_reference_backend();
};

TEST(OutputError, IsThatOfEachLayerAndQueryHeadInMeasuredSteps) {
  const Geometry g = small_geometry(kSize, 6, 2, 2);
  Scripted inner;
  OutputErrorBackend backend(inner);
  backend.add(plan_for("tok4g32", g));
  backend.add(plan_for("bf16", g));
  Cache cache(plan_for("bf16", g), 0);
  const SequenceId s = cache.add();
  for (const int first_measured : {5, 0, 2}) {
    const auto out = run(cache, s, 5, true, first_measured, backend, values_of, 3);
    EXPECT_EQ(out[1][2 * kSize], 13.0F);  // The model gets the exact outputs.
  }
  const LayerEffects& effects = backend.effects(0);
  for (int layer = 0; layer < 2; ++layer) {
    double squares = 0;
    for (int head = 0; head < 6; ++head) {
      const double exact = 10 * layer + head + 1;
      squares += exact * exact;
      const OutputError& error = effects.errors[layer * 6 + head];
      EXPECT_EQ(error.values, (5 + 3) * kSize);
      EXPECT_DOUBLE_EQ(error.mse(), exact * exact / 4);
      EXPECT_DOUBLE_EQ(error.relative(), 0.5);
    }
    EXPECT_DOUBLE_EQ(effects.of_layer(layer).mse(), squares / 6 / 4);
  }
  EXPECT_EQ(effects.total().values, 2 * 6 * (5 + 3) * kSize);
  EXPECT_EQ(backend.effects(1).total().difference, 0);
  EXPECT_GT(backend.effects(1).total().energy, 0);
}

// The shadow of a recipe must attend and skip as a cache of that recipe does with equal Q, K and V.
TEST(OutputError, OfARecipeIsThatOfItsOwnCache) {
  const Geometry g = small_geometry(kSize, 4, 2, 2);
  const auto recipe = plan_for("k=ch4g128,v=tok2g128,sink=4,skip=1e-3", g), exact = plan_for("bf16", g);
  const auto inner = make_reference_backend();
  OutputErrorBackend backend(*inner);
  backend.add(recipe);
  Cache cache(exact, 0), alone(recipe, 0), alone_exact(exact, 0);
  const SequenceId s = cache.add(), a = alone.add(), e = alone_exact.add();
  run(cache, s, 300, true, 300, backend, values_of, 2);
  run(cache, s, 90, false, 0, backend, values_of, 2);

  attend_tokens(alone, a, 300, true, values_of);
  attend_tokens(alone_exact, e, 300, true, values_of);
  const auto counting = make_reference_backend();
  const auto got = attend_tokens(alone, a, 90, false, values_of, *counting);
  const auto right = attend_tokens(alone_exact, e, 90, false, values_of);
  for (int layer = 0; layer < 2; ++layer) {
    double difference = 0, energy = 0;
    for (std::size_t i = 0; i < got[layer].size(); ++i) {
      difference += std::pow(static_cast<double>(got[layer][i]) - right[layer][i], 2);
      energy += std::pow(static_cast<double>(right[layer][i]), 2);
    }
    EXPECT_GT(difference, 0);
    const OutputError error = backend.effects(0).of_layer(layer);
    EXPECT_NEAR(error.difference, difference, 1e-9 * difference);
    EXPECT_NEAR(error.energy, energy, 1e-9 * energy);
    const SkipCount& skips = backend.effects(0).skips[layer];
    const SkipCount expected = counting->skip_counts()[layer];
    EXPECT_EQ(skips.seen, expected.seen);
    EXPECT_EQ(skips.skipped, expected.skipped);
    EXPECT_EQ(skips.queries, 2 * 90);
    EXPECT_NEAR(skips.mass, expected.mass, 1e-9 * expected.mass);
  }
}

TEST(OutputError, EachTextStartsWithEmptyCaches) {
  const Geometry g = small_geometry(kSize, 2, 1, 1);
  const auto inner = make_reference_backend();
  OutputErrorBackend backend(*inner);
  backend.add(plan_for("tok4g32", g));
  Cache cache(plan_for("bf16", g), 0);
  OutputError first;
  for (int text = 0; text < 2; ++text) {
    const SequenceId s = cache.add();
    backend.begin();
    run(cache, s, 200, true, 0, backend, values_of);
    if (text == 0) first = backend.effects(0).total();
  }
  EXPECT_GT(first.difference, 0);
  EXPECT_DOUBLE_EQ(backend.effects(0).total().difference, 2 * first.difference);
}

// Half of the keys point in the direction of all queries and get equal weights. The other keys get weights
// near 0.
TEST(MassCoverage, IsTheShareOfTheWeightsOnUnquantizedTokens) {
  const Geometry g = small_geometry(kSize, 4, 2, 1);
  const RowSource source = [](int, int, int kind, int token) {
    std::vector<float> row(kSize, 0.0F);
    row[0] = kind == kQueryRows ? 40.0F : (kind == kKeyRows && token % 2 == 0 ? 10.0F : 0.0F);
    return row;
  };
  Cache cache(plan_for("bf16", g), 0);
  const SequenceId s = cache.add();
  attend_tokens(cache, s, 3 * kPageTokens, true, source);
  auto step = cache.reserve({{s, 2, false}});
  ASSERT_TRUE(step.ok());
  testing::run_step(**step, source, *make_reference_backend());
  std::vector<float> q(2 * 4 * kSize, 0.0F);
  for (std::size_t i = 0; i < q.size(); i += kSize) q[i] = 40.0F;
  const UnquantizedTokens tokens{2 * kPageTokens, {0, 1, 2, 4, 255}};
  std::vector<PageView> pages;
  head_of(**step, 0, 0, 1).list_pages(0, pages);
  const MassCoverage coverage =
      measure_coverage(cache.plan(), 0, 1, {q.data(), 2, 4 * kSize}, (*step)->first_token(0), pages, tokens);
  EXPECT_EQ(coverage.rows, 2 * 2);
  // Both queries attend to the even tokens of 0 .. 384. 65 of these 193 tokens are unsealed, and 3 are
  // protected.
  EXPECT_NEAR(coverage.unsealed / 4, 65.0 / 193, 1e-6);
  EXPECT_NEAR(coverage.protected_mass / 4, 3.0 / 193, 1e-6);
}

TEST(MassCoverage, KnowsWhatACacheLeavesUnquantized) {
  const Geometry g = small_geometry(kSize, 4, 2, 1);
  Cache cache(plan_for("k=ch4g128,v=tok2g128,sink=3,window=128", g), 0);
  const SequenceId s = cache.add();
  attend_tokens(cache, s, 450, true, values_of);  // Pages 0 and 1 lie before the window.
  EXPECT_EQ(cache.pages(s).n_sealed(), 2);
  EXPECT_EQ(cache.pages(s).protected_tokens(0, 1), (std::vector<int>{0, 1, 2}));
}

}  // namespace
}  // namespace kvant::output_error_test
