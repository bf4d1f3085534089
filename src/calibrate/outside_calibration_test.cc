#include "calibrate/outside_calibration.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <random>

#include "calibrate/calibrate.h"
#include "calibrate/capture.h"
#include "calibrate/differentiable_model.h"
#include "calibrate/rope_turns.h"
#include "calibrate/sealed_gguf.h"
#include "model/tiny_model.h"
#include "model/tokenizer.h"
#include "recipe/recipe.h"

namespace kvant::outside_calibration_test {
namespace {

namespace fs = std::filesystem;

// The rows of one sequence that a backend is shown, layer by layer: [tokens, heads * d].
class Watching final : public BackendDecorator {
 public:
  explicit Watching(AttentionBackend& inner) : BackendDecorator(inner) {}
  struct Rows {
    std::vector<float> q, k, v;
  };
  std::map<int, Rows> of_layer;

  void run_layer(Step& step, int layer, const LayerRows& rows, Team& team) override {
    team.barrier();
    if (team.index() == 0) {
      append(rows.q, of_layer[layer].q);
      append(rows.k, of_layer[layer].k);
      append(rows.v, of_layer[layer].v);
    }
    team.barrier();
    inner().run_layer(step, layer, rows, team);
  }

 private:
  template <class View>
  static void append(const View& rows, std::vector<float>& to) {
    for (int r = 0; r < rows.rows; ++r) to.insert(to.end(), rows.row(r), rows.row(r) + rows.cols);
  }
};

std::string letters(int n) {
  std::mt19937 random(5);
  std::string text;
  for (int i = 0; i < n; ++i) text += static_cast<char>('a' + random() % 26);
  return text;
}

// A model of the engine, calibrated by the engine and as if it ran elsewhere.
class OutsideModels : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("kvant_outside_" + std::to_string(getpid()));
    fs::create_directories(folder_);
    TinyModelWriter(TinyModel{}).write((folder_ / "model.gguf").string());
    engine_ = Engine::load((folder_ / "model.gguf").string(), {.n_threads = 1}).value();
    settings_.samples = 3;
    settings_.length = 150;
    settings_.rows = 200;
    settings_.passages = 1;
    settings_.context_length = 300;
    settings_.seed = 7;
  }
  void TearDown() override { fs::remove_all(folder_); }

  OutsideModel model() {
    return {engine_->description(), engine_->fingerprint(), engine_->geometry(),
            rope_turns(engine_->parts(), engine_->geometry(), 1)};
  }

  // Reads a sample as read_samples() does.
  void read(const Sample& sample, int sequence, OutsideCalibration& to) {
    const auto plan = resolve(Recipe{}, engine_->geometry(), nullptr).value();
    Watching backend(*backend_);
    Cache cache(plan, 0);
    const SequenceId id = cache.add();
    const std::span<const std::int32_t> tokens(sample.tokens);
    const EngineInput start{id, tokens.first(kSinkTokens), true, kSinkTokens, 0};
    ASSERT_TRUE(engine_->step(cache, backend, {&start, 1}, {}).ok());
    const auto rest = tokens.subspan(kSinkTokens);
    const EngineInput far{id, rest, true, static_cast<int>(rest.size()), sample.position_offset};
    ASSERT_TRUE(engine_->step(cache, backend, {&far, 1}, {}).ok());
    for (auto& [layer, rows] : backend.of_layer) {
      const auto n = static_cast<int>(tokens.size());
      const auto view = [n](const std::vector<float>& x) {
        return MatrixView<const float>(x.data(), n, static_cast<int>(x.size()) / n);
      };
      to.store(sequence, layer, view(rows.q), view(rows.k), view(rows.v));
    }
  }

  void weigh(const std::vector<Sample>& contexts, OutsideCalibration& to) {
    const Geometry& g = engine_->geometry();
    const auto differentiable = make_host_model(engine_->parts(), 1);
    const auto moments =
        query_moments(*differentiable, g, {contexts, settings_.seed, 1, [](int) {}, nullptr}).value();
    for (int layer = 0; layer < g.n_layers; ++layer)
      for (int head = 0; head < g.kv_heads(layer); ++head)
        to.add_moments(layer, head, moments[g.head_index(layer, head)]);
  }

  Result<Calibration> by_hand(const Recipe& recipe) {
    auto made = OutsideCalibration::make(model(), {recipe}, settings_, fnv1a(text_), {});
    if (!made.ok()) return made.error();
    const auto tokens = engine_->tokenizer().encode(text_, false, false).value();
    const auto with_bos = engine_->tokenizer().encode("a", true, false).value();
    const std::int32_t bos = with_bos.size() > 1 ? with_bos.front() : -1;
    const std::vector<Sample> samples = made->samples(tokens, bos).value();
    for (std::size_t i = 0; i < samples.size(); ++i) read(samples[i], static_cast<int>(i), *made);
    const std::vector<Sample> contexts = made->query_contexts(tokens, bos).value();
    if (!contexts.empty()) weigh(contexts, *made);
    return made->learn(2, nullptr);
  }

  Result<Calibration> by_engine(const Recipe& recipe) {
    CalibrationRequest request;
    request.recipes = {recipe};
    request.text = text_;
    request.settings = settings_;
    request.n_threads = 1;
    return calibrate(*engine_, *backend_, request);
  }

  using All = std::map<std::tuple<int, int, Side, std::string>, std::vector<float>>;
  static All constants_of(const Calibration& calibration) {
    All all;
    calibration.constants.for_each(
        [&](int layer, int head, Side side, const std::string& name, const std::vector<float>& values) {
          all[{layer, head, side, name}] = values;
        });
    return all;
  }

  fs::path folder_;
  std::string text_ = letters(4000);
  CalibrationSettings settings_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<AttentionBackend> backend_ = make_reference_backend();
};

TEST_F(OutsideModels, GetWhatTheEngineLearns) {
  for (const char* text : {"k=smooth+hadamard:vq-d4b4,v=mean:nvq-d4b4,sink=4",
                           "k=hadamard:tcq4,v=hadamard:tcq4,sink=1,encode=shaped"}) {
    const Recipe recipe = parse_recipe(text).value();
    const auto expected = by_engine(recipe), found = by_hand(recipe);
    ASSERT_TRUE(expected.ok() && found.ok()) << text;
    EXPECT_FALSE(constants_of(*expected).empty());
    EXPECT_EQ(constants_of(*found), constants_of(*expected)) << text;
    EXPECT_EQ(found->fingerprint, expected->fingerprint);
    EXPECT_EQ(found->text_hash, expected->text_hash);
    ASSERT_EQ(found->quality.size(), 1U);
    EXPECT_EQ(found->quality[0].key_error, expected->quality[0].key_error);
    EXPECT_EQ(found->quality[0].output_error, expected->quality[0].output_error);
  }
}

TEST_F(OutsideModels, AreRefusedWhatOnlyTheEngineFindsOut) {
  const auto refusal = [&](const char* text) {
    const auto made = OutsideCalibration::make(model(), {parse_recipe(text).value()}, settings_, 0, {});
    return made.ok() ? "" : made.error().message;
  };
  EXPECT_NE(refusal("kvant-4bit").find("has a budget"), std::string::npos);
  EXPECT_NE(refusal("kivi-2bit").find("needs no calibration"), std::string::npos);
}

TEST_F(OutsideModels, EndWhenTheyAreStopped) {
  const std::atomic<bool> stop{true};
  auto made = OutsideCalibration::make(model(), {parse_recipe("vecinfer-2bit").value()}, settings_, 0, {});
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->learn(1, &stop).error().message, "interrupted");
}

}  // namespace
}  // namespace kvant::outside_calibration_test
