// Compares the guard's errors with the errors of attention in caches of equal tokens. Further tests run
// recipes that are deliberately broken, and a real model.
#include "eval/quality_guard.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <tuple>

#include "attention/attention_fixture.h"
#include "model/engine.h"
#include "model/tokenizer.h"
#include "recipe/stand_in_constants.h"

namespace kvant {
namespace {

using testing::attend_tokens;
using testing::plan_for;
using testing::run_step;
using testing::small_geometry;

constexpr int kSize = 64;

std::vector<float> values_of(int layer, int head, int kind, int token) {
  return testing::token_values(layer, head, kind, token, kSize);
}

// Decodes n tokens in single steps. Returns true as soon as the guard warns.
bool warns_within(QualityGuard& guard, Cache& cache, SequenceId s, int n) {
  for (int i = 0; i < n; ++i) {
    attend_tokens(cache, s, 1, false, values_of, guard);
    if (guard_warning(guard.report(), "any")) return true;
  }
  return false;
}

TEST(RecentRows, KeepTheNewestTokensAndCanGoBack) {
  RecentRows rows(3, 2);
  const auto add = [&](float x) {
    const float k[2] = {x, 0.5F}, v[2] = {-x, 2};
    rows.add(k, v);
  };
  for (int t = 0; t < 5; ++t) add(static_cast<float>(t));
  EXPECT_EQ(rows.first(), 2);
  EXPECT_EQ(rows.end(), 5);
  std::vector<float> k(4), v(4);
  rows.go_to(4);
  EXPECT_EQ(rows.end(), 4);
  rows.read(2, 2, k.data(), v.data());
  EXPECT_EQ(k, (std::vector<float>{2, 0.5F, 3, 0.5F}));
  EXPECT_EQ(v, (std::vector<float>{-2, 2, -3, 2}));
  // Tokens 4 to 6 were not added to the rows, so all earlier tokens must be forgotten.
  rows.go_to(7);
  EXPECT_EQ(rows.first(), 7);
  rows.go_to(1);
  EXPECT_EQ(rows.first(), 1);
  EXPECT_EQ(rows.end(), 1);
}

// While the guard keeps all tokens, its error must equal the difference between the outputs of two caches.
void expect_error_of_outputs(const Geometry& g) {
  const auto plan = plan_for("k=hadamard:tok4g32,v=tok2g32,sink=4", g);
  const auto inner = make_reference_backend();
  QualityGuard guard(*inner, *plan, {.every = 1});
  Cache cache(plan, 0), exact(plan_for("bf16", g), 0);
  const SequenceId s = cache.add(), e = exact.add();
  attend_tokens(cache, s, 300, true, values_of, guard);
  attend_tokens(exact, e, 300, true, values_of);
  const auto got = attend_tokens(cache, s, 1, false, values_of, guard);
  const auto right = attend_tokens(exact, e, 1, false, values_of);
  const GuardReport report = guard.report();
  EXPECT_EQ(report.checks, 2);
  EXPECT_EQ(report.steps, 1);
  EXPECT_EQ(report.bytes, 2 * 2 * 3 * kPageTokens * kSize * 2);
  for (int layer = 0; layer < 2; ++layer) {
    const GuardedLayer& found = report.layers[layer];
    double difference = 0, energy = 0;
    for (int i = found.kv_head * 3 * kSize; i < (found.kv_head + 1) * 3 * kSize; ++i) {
      difference += std::pow(static_cast<double>(got[layer][i]) - right[layer][i], 2);
      energy += std::pow(static_cast<double>(right[layer][i]), 2);
    }
    EXPECT_NEAR(found.error.relative(), std::sqrt(difference / energy), 0.01 * found.error.relative());
    EXPECT_GT(found.error.relative(), 0.1);
    EXPECT_LT(found.keys.relative(), found.error.relative());
    EXPECT_GT(found.keys.relative(), 0);
  }
}

TEST(QualityGuard, FindsTheErrorOfTheCachesOutputs) {
  expect_error_of_outputs(small_geometry(kSize, 6, 2, 2));
}

TEST(QualityGuard, FindsItWhereSinkLogitsJoinTheSoftmax) {
  Geometry g = small_geometry(kSize, 6, 2, 2);
  // Each group has heads whose sink logit takes none, a part, or nearly all of the attention.
  for (int i = 0; i < g.n_layers * g.n_heads; ++i) g.sink_logits.push_back(6.0F * (i % 3) - 4);
  expect_error_of_outputs(g);
}

TEST(QualityGuard, FindsNothingInAnUnquantizedCache) {
  const Geometry g = small_geometry(kSize, 6, 2, 2);
  const auto plan = plan_for("bf16", g);
  const auto inner = make_reference_backend();
  QualityGuard guard(*inner, *plan, {.every = 4});
  Cache cache(plan, 0);
  const SequenceId s = cache.add();
  attend_tokens(cache, s, 600, true, values_of, guard);
  EXPECT_FALSE(warns_within(guard, cache, s, 40));
  EXPECT_EQ(guard.report().checks, 2 * 10);
  EXPECT_EQ(guard.report().estimated_kld, 0);
}

// Returns constants in which one layer's codebook for V is multiplied by `factor`.
std::shared_ptr<const Constants> with_codebook_times(const Recipe& recipe, const Geometry& g, float factor,
                                                     int layer) {
  auto constants = std::make_shared<Constants>(*testing::made_up_constants(recipe, g));
  for (int head = 0; head < g.n_kv_heads; ++head) {
    const auto found = constants->find(layer, head, Side::value, "codebook/vq-d4b8");
    std::vector<float> codebook(found.begin(), found.end());
    EXPECT_FALSE(codebook.empty());
    for (float& x : codebook) x *= factor;
    constants->set(layer, head, Side::value, "codebook/vq-d4b8", std::move(codebook));
  }
  return constants;
}

// Layer 2 of 5 uses a codebook whose values are ten times too large.
TEST(QualityGuard, NamesTheLayerOfAWrongCodebookWithin256Tokens) {
  const Geometry g = small_geometry(kSize, 2, 1, 5);
  const auto recipe = parse_recipe("k=tok8g32s,v=tok8g32s,sink=4,v@2=vq-d4b8");
  ASSERT_TRUE(recipe.ok());
  for (const float factor : {1.0F, 10.0F}) {
    const auto plan = resolve(*recipe, g, with_codebook_times(*recipe, g, factor, 2));
    ASSERT_TRUE(plan.ok());
    const auto inner = make_reference_backend();
    QualityGuard guard(*inner, **plan, {});
    Cache cache(*plan, 0);
    const SequenceId s = cache.add();
    attend_tokens(cache, s, 300, true, values_of, guard);
    ASSERT_EQ(warns_within(guard, cache, s, 256), factor != 1);
    if (factor == 1) continue;
    const std::string warning = *guard_warning(guard.report(), "mine");
    EXPECT_NE(warning.find("layer 2"), std::string::npos) << warning;
    EXPECT_NE(warning.find("--kv 'mine,v@2=tok8g32s'"), std::string::npos) << warning;
  }
}

// All tests after this comment run on the activations of a real model.

// Forwards steps to the inner backend and keeps the rows of all tokens.
class RecordingBackend : public BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;
  void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) override {
    inner().run_layer(step, layer, rows, team);
    if (team.index() != 0) return;
    // The index is the kind in the key of rows_.
    const MatrixView<const float>* const views[] = {&rows.k, &rows.v, &rows.q};
    for (int kind = 0; kind < 3; ++kind) {
      for (int r = 0; r < views[kind]->rows; ++r) {
        const float* row = views[kind]->row(r);
        for (int first = 0; first < views[kind]->cols; first += kSize)
          rows_[{layer, kind, first / kSize}].emplace_back(row + first, row + first + kSize);
      }
    }
  }
  const std::vector<float>& row(int layer, int head, int kind, int token) const {
    return rows_.at({layer, kind, head})[token];
  }

 private:
  std::map<std::tuple<int, int, int>, std::vector<std::vector<float>>> rows_;
};

// The default model reads the text once. Each test then attends to the recorded K and V with its own recipe.
// As in a generation, kSteps steps of kStep tokens follow kPrompt tokens.
class QualityGuardOnTheModel : public ::testing::Test {
 protected:
  static constexpr int kPrompt = 256, kSteps = 8, kStep = 6;

  static void SetUpTestSuite() {
    if (!std::filesystem::exists(KVANT_TEST_MODEL)) return;
    engine_ = Engine::load(KVANT_TEST_MODEL, {2, WeightMode::as_stored, 0}).value();
    std::ostringstream text;
    text << std::ifstream(KVANT_TEST_TEXT).rdbuf();
    auto tokens = engine_->tokenizer().encode(text.str(), true, false).value();
    tokens.resize(kPrompt + kSteps * kStep);
    backend_ = make_cpu_backend();
    rows_ = std::make_unique<RecordingBackend>(*backend_);
    Cache cache(resolve(*parse_recipe("bf16"), engine_->geometry(), nullptr).value(), 0);
    const EngineInput input{cache.add(), tokens, true, static_cast<int>(tokens.size())};
    const Status status = engine_->step(cache, *rows_, {&input, 1}, {});
    ASSERT_TRUE(status.ok()) << status.error().message;
    ASSERT_EQ(engine_->geometry().head_dim, kSize);
  }
  static void TearDownTestSuite() {
    rows_.reset();
    backend_.reset();
    engine_.reset();
  }
  void SetUp() override {
    if (engine_ == nullptr) GTEST_SKIP() << "no default model: `make setup` fetches it";
  }

  static std::optional<std::string> warning_about(const std::string& recipe_text, bool stand_ins = false) {
    const auto recipe = parse_recipe(recipe_text);
    const Geometry& g = engine_->geometry();
    const auto plan =
        resolve(*recipe, g, stand_ins ? stand_in_constants(*recipe, g) : nullptr, backend_->page_order());
    if (!plan.ok()) {
      ADD_FAILURE() << plan.error().message;
      return std::nullopt;
    }
    QualityGuard guard(*backend_, **plan, {.every = 2});
    Cache cache(*plan, 0);
    const SequenceId s = cache.add();
    const auto source = [](int layer, int head, int kind, int token) {
      return rows_->row(layer, head, kind, token);
    };
    attend_tokens(cache, s, kPrompt, true, source, guard);
    for (int i = 0; i < kSteps; ++i) attend_tokens(cache, s, kStep, false, source, guard);
    EXPECT_EQ(guard.report().checks, g.n_layers * kSteps / 2) << recipe_text;
    return guard_warning(guard.report(), recipe_text);
  }

 private:
  static std::unique_ptr<Engine> engine_;  // null if the model file is missing
  static std::unique_ptr<AttentionBackend> backend_;
  static std::unique_ptr<RecordingBackend> rows_;
};
std::unique_ptr<Engine> QualityGuardOnTheModel::engine_;
std::unique_ptr<AttentionBackend> QualityGuardOnTheModel::backend_;
std::unique_ptr<RecordingBackend> QualityGuardOnTheModel::rows_;

// The list has product recipes of every kind that needs no calibration. One-bit recipes are left
// out, because they have a divergence of 7 nats and the guard rightly warns.
TEST_F(QualityGuardOnTheModel, IsSilentForProductRecipes) {
  for (const char* recipe : {"fp8", "q8_0", "q4_0", "kivi-4bit", "kivi-2bit", "kivi-2bit-g32", "turbo2",
                             "vquant-k4v2", "k=hadamard:tcq2,v=hadamard:tcq2,sink=4"}) {
    const auto warning = warning_about(recipe);
    EXPECT_FALSE(warning) << recipe << ": " << *warning;
  }
}

TEST_F(QualityGuardOnTheModel, DetectsCodebooksThatWereNotLearnedOnTheModel) {
  const auto warning = warning_about("vecinfer-2bit", /*stand_ins=*/true);
  ASSERT_TRUE(warning);
  EXPECT_NE(warning->find("recalibrate it"), std::string::npos) << *warning;
}

TEST_F(QualityGuardOnTheModel, SpeaksUpWhereARecipeIsTooCoarse) {
  EXPECT_TRUE(warning_about("kivi-1bit"));
}

}  // namespace
}  // namespace kvant
