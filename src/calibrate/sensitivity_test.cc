#include "calibrate/sensitivity.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <random>

#include "calibrate/calibrate.h"
#include "calibrate/sensitivity_estimate.h"
#include "model/engine_decorator.h"
#include "model/tiny_engines.h"
#include "model/tokenizer.h"
#include "recipe/bit_allocation.h"
#include "recipe/plan.h"

namespace kvant::sensitivity_test {
namespace {

constexpr const char* kSpread = "k=hadamard:tcq2,v=tcq2,sink=4,budget=2.6,ladder=tcq1+tcq2+tcq3+tcq4";

Recipe recipe(const std::string& text) {
  auto parsed = parse_recipe(text);
  EXPECT_TRUE(parsed.ok()) << text;
  return *parsed;
}

std::string letters(int n) {
  std::mt19937 random(9);
  std::string text;
  for (int i = 0; i < n; ++i) text += static_cast<char>('a' + random() % 26);
  return text;
}

// OddEngine claims to have another model's weights, so its gradients must not be trusted.
class OddEngine final : public EngineDecorator {
 public:
  OddEngine(Engine& engine, Engine& other) : EngineDecorator(engine), other_(other) {}
  ModelParts parts() const override { return other_.parts(); }

 private:
  Engine& other_;
};

class SensitivityTest : public testing::TinyEngine {
 protected:
  // Returns the log softmax of every prediction [n, n_vocab] of `tokens`, in double precision.
  std::vector<std::vector<double>> predictions(const Recipe& of, const std::vector<std::int32_t>& tokens) {
    const auto plan = resolve(of, engine_->geometry(), nullptr);
    EXPECT_TRUE(plan.ok());
    Cache cache(*plan, 0);
    const int n = static_cast<int>(tokens.size());
    const int n_vocab = engine_->n_vocab();
    std::vector<float> logits(static_cast<std::size_t>(n) * n_vocab);
    const EngineInput input{cache.add(), tokens, true, 0};
    EXPECT_TRUE(engine_->step(cache, *backend_, {&input, 1}, {logits.data(), n, n_vocab}).ok());
    std::vector<std::vector<double>> rows;
    for (int t = 0; t < n; ++t) {
      rows.emplace_back(logits.begin() + static_cast<std::ptrdiff_t>(t) * n_vocab,
                        logits.begin() + static_cast<std::ptrdiff_t>(t + 1) * n_vocab);
      double sum = 0;
      for (const double x : rows.back()) sum += std::exp(x);
      for (double& x : rows.back()) x -= std::log(sum);
    }
    return rows;
  }

  CalibrationRequest request() const {
    CalibrationRequest asked;
    asked.recipes = {recipe(kSpread)};
    asked.text = letters(3000);
    asked.settings = {
        .samples = 2, .length = 150, .rows = 100, .passages = 1, .context_length = 400, .seed = 3};
    asked.n_threads = 1;
    return asked;
  }
};

TEST_F(SensitivityTest, AreTheDivergenceOfTheSecondHalf) {
  std::vector<std::int32_t> tokens;
  std::mt19937 random(4);
  for (int i = 0; i < 400; ++i) tokens.push_back(static_cast<std::int32_t>(3 + random() % 200));
  const Recipe probing = probe_recipe(recipe(kSpread), {1, 0, 1, Side::value}, 64);
  EXPECT_EQ(to_string(probing), "k=bf16,v=bf16,sink=4,v@1.0=tcq2");
  const auto exact = predictions(Recipe{}, tokens);
  const auto quantized = predictions(probing, tokens);
  double expected = 0;
  for (int t = 200; t < 400; ++t)
    for (std::size_t i = 0; i < exact[t].size(); ++i)
      expected += std::exp(exact[t][i]) * (exact[t][i] - quantized[t][i]) / 200;
  auto probe = SensitivityProbe::make(*engine_, *backend_, tokens, 1);
  ASSERT_TRUE(probe.ok());
  const auto divergence = (*probe)->divergence(probing, nullptr);
  ASSERT_TRUE(divergence.ok());
  EXPECT_GT(expected, 1e-6);
  EXPECT_NEAR(*divergence, expected, 0.01 * expected);
}

TEST_F(SensitivityTest, AreMeasuredHeadByHeadUntilThereAreTooMany) {
  Geometry g = engine_->geometry();
  EXPECT_EQ(sensitivity_units(g).size(), 8U);  // 2 layers, 2 heads, 2 sides
  g.n_layers = 80;
  g.n_kv_heads = 8;
  ASSERT_EQ(sensitivity_units(g).size(), 160U);
  EXPECT_EQ(sensitivity_units(g).front().n_heads, 8);
  EXPECT_EQ(probe_recipe(recipe(kSpread), sensitivity_units(g).front(), 64).overrides.size(), 8U);
}

TEST_F(SensitivityTest, OfACalibrationLeadToAnAllocationWithinTheBudget) {
  const auto made = calibrate(*engine_, *backend_, request());
  ASSERT_TRUE(made.ok()) << made.error().message;
  const Recipe spread = recipe(kSpread);
  const Geometry& g = engine_->geometry();
  const auto constants = constants_from(*made, spread, g, engine_->fingerprint(), "FILE");
  ASSERT_TRUE(constants.ok()) << constants.error().message;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (const Side side : kSides) {
      const auto sensitivity = (*constants)->find(layer, 0, side, sensitivity_constant(spread));
      ASSERT_EQ(sensitivity.size(), 4U);
      for (std::size_t i = 0; i + 1 < sensitivity.size(); ++i) EXPECT_GT(sensitivity[i], sensitivity[i + 1]);
    }
  }
  const auto plan = resolve(spread, g, *constants);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  double bits = 0;
  for (const HeadPlan& head : (*plan)->heads)
    for (const Side side : kSides) bits += head.side(side).sealed->bits(g.head_dim) / 8;
  EXPECT_LE(bits, 2.6);
  EXPECT_GT(bits, 2.3);
}

// If errors are small, the mean of many estimates must equal the sensitivities that runs of the model
// measure.
TEST_F(SensitivityTest, AreEstimatedAsTheyAreMeasured) {
  const Recipe spread = recipe("k=hadamard:tcq4,v=tcq4,sink=4,budget=4.6,ladder=tcq4+tcq5");
  std::vector<std::int32_t> tokens;
  std::mt19937 random(6);
  for (int i = 0; i < 300; ++i) tokens.push_back(static_cast<std::int32_t>(3 + random() % 200));
  const Geometry& g = engine_->geometry();
  auto probe = SensitivityProbe::make(*engine_, *backend_, tokens, 1);
  ASSERT_TRUE(probe.ok());
  double measured = 0, estimated = 0;
  for (const SensitivityUnit& unit : sensitivity_units(g)) {
    const auto one = (*probe)->divergence(probe_recipe(spread, unit, g.head_dim), nullptr);
    ASSERT_TRUE(one.ok());
    measured += *one;
  }
  constexpr int kDraws = 8;
  const auto model = make_host_model(engine_->parts(), /*n_threads=*/1);
  for (int draw = 0; draw < kDraws; ++draw) {
    const auto all =
        estimate_sensitivities(*model, g, spread, Constants{},
                               {tokens, 150, static_cast<std::uint64_t>(draw), 1, [](int) {}, nullptr});
    ASSERT_TRUE(all.ok());
    ASSERT_EQ(all->size(), 8U);
    for (const std::vector<float>& place : *all) estimated += place[0] / kDraws;
  }
  EXPECT_GT(estimated, 0.7 * measured);
  EXPECT_LT(estimated, 1.4 * measured);
}

TEST_F(SensitivityTest, GetAShareOfTheirMean) {
  Sensitivities two = {{100, 0}, {0, 100}};
  add_floor(two);
  EXPECT_EQ(two, (Sensitivities{{101.5F, 1.5F}, {1.5F, 101.5F}}));
}

TEST_F(SensitivityTest, AreTheSameForAnyNumberOfThreads) {
  const Recipe spread = recipe(kSpread);
  const auto values = [&](int n_threads) {
    CalibrationRequest asked = request();
    asked.n_threads = n_threads;
    const auto made = calibrate(*engine_, *backend_, asked);
    EXPECT_TRUE(made.ok());
    std::vector<float> all;
    made->constants.for_each([&](int, int, Side, const std::string&, const std::vector<float>& of_place) {
      all.insert(all.end(), of_place.begin(), of_place.end());
    });
    return all;
  };
  const std::vector<float> alone = values(1);
  EXPECT_EQ(alone.size(), 2U * 2 * 2 * 4);
  EXPECT_EQ(values(3), alone);
}

// The gradients cannot be trusted, so sensitivities are measured. The work stops after the unquantized run
// and two probes. A resumed calibration must find the two results.
TEST_F(SensitivityTest, GoOnWhereTheyWereInterrupted) {
  const TinyFile other_file("other.gguf");
  TinyModelWriter(TinyModel{.seed = 2}).write(other_file.path());
  const auto other = Engine::load(other_file.path(), {.n_threads = 1});
  ASSERT_TRUE(other.ok());
  OddEngine odd(*engine_, **other);
  class Stopping final : public BackendDecorator {
   public:
    Stopping(AttentionBackend& inner, std::atomic<bool>& flag) : BackendDecorator(inner), flag_(flag) {}
    void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) override {
      if (team.index() == 0 && ++runs == stop_at) flag_ = true;
      inner().run_layer(step, layer, rows, team);
    }
    int runs = 0;
    int stop_at = -1;

   private:
    std::atomic<bool>& flag_;
  };
  const TinyFile state("sensitivities_state");
  std::atomic<bool> stop{false};
  CalibrationRequest asked = request();
  asked.stop = &stop;
  Stopping counting(*backend_, stop);
  const auto whole = calibrate(odd, counting, asked);
  ASSERT_TRUE(whole.ok());
  constexpr int kRuns = 9;  // runs per context, the unquantized one first
  const int by_run = engine_->geometry().n_layers;
  asked.state_path = state.path();
  Stopping first(*backend_, stop);
  first.stop_at = counting.runs - (kRuns - 3) * by_run;
  ASSERT_FALSE(calibrate(odd, first, asked).ok());
  stop = false;
  Stopping second(*backend_, stop);
  const auto resumed = calibrate(odd, second, asked);
  ASSERT_TRUE(resumed.ok()) << resumed.error().message;
  EXPECT_EQ(second.runs, (kRuns - 2 + 2) * by_run);  // two runs compare predictions
  const Recipe spread = recipe(kSpread);
  for (const auto* made : {&*whole, &*resumed})
    EXPECT_TRUE(constants_from(*made, spread, engine_->geometry(), engine_->fingerprint(), "FILE").ok());
  asked.state_path.clear();
  asked.settings.measure = true;
  const auto on_demand = calibrate(*engine_, *backend_, asked);
  ASSERT_TRUE(on_demand.ok());
  whole->constants.for_each(
      [&](int layer, int kv_head, Side side, const std::string& name, std::span<const float> values) {
        const auto measured = on_demand->constants.find(layer, kv_head, side, name);
        EXPECT_TRUE(std::equal(values.begin(), values.end(), measured.begin(), measured.end())) << name;
      });
}

}  // namespace
}  // namespace kvant::sensitivity_test
