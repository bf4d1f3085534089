#include "calibrate/outside_calibration.h"

#include <ggml.h>
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
#include "model/weights.h"
#include "recipe/recipe.h"

namespace kvant::outside_calibration_test {
namespace {

namespace fs = std::filesystem;

// Watching records the rows of one sequence that a backend gets, by layer, [tokens, heads * d].
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

// HandingOver passes the layers of a context to OutsideCalibration in an outside model's form, in which a row
// has all heads of a token.
class HandingOver final : public ContextObserver {
 public:
  HandingOver(const Geometry& geometry, OutsideCalibration& to, int context)
      : geometry_(geometry), to_(to), context_(context) {}
  Status begin(int, const QueryMoments&) override { return to_.begin_context(context_, 2); }
  void visit(int layer, const LayerGradient& state) override {
    const int n_heads = geometry_.n_heads, n_kv_heads = geometry_.kv_heads(layer), d = geometry_.dim(layer);
    const int n = state.stored(0, Side::key).rows;
    std::vector<float> rows[4];
    const auto put = [&](std::vector<float>& to, int head, int heads, MatrixView<const float> from) {
      to.resize(static_cast<std::size_t>(n) * heads * d);
      for (int r = 0; r < n; ++r)
        std::copy_n(from.row(r), d, to.data() + (static_cast<std::size_t>(r) * heads + head) * d);
    };
    for (int head = 0; head < n_heads; ++head) {
      put(rows[0], head, n_heads, state.attention(head).queries());
      put(rows[3], head, n_heads, state.output_gradient(head));
    }
    for (int head = 0; head < n_kv_heads; ++head) {
      put(rows[1], head, n_kv_heads, state.stored(head, Side::key));
      put(rows[2], head, n_kv_heads, state.stored(head, Side::value));
    }
    const auto view = [&](int i, int heads) { return MatrixView<const float>(rows[i].data(), n, heads * d); };
    to_.add_gradient(layer, view(0, n_heads), view(1, n_kv_heads), view(2, n_kv_heads), view(3, n_heads));
  }
  void end(int, int n_scored) override { to_.end_context(context_, n_scored); }

 private:
  const Geometry& geometry_;
  OutsideCalibration& to_;
  int context_;
};

std::string letters(int n) {
  std::mt19937 random(5);
  std::string text;
  for (int i = 0; i < n; ++i) text += static_cast<char>('a' + random() % 26);
  return text;
}

// OutsideModels calibrates a model with the engine, and again as if the model ran elsewhere.
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

  // Reads a sample in the same way as read_samples().
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
    for (int c = 0; c < static_cast<int>(contexts.size()); ++c) {
      HandingOver observer(g, to, c);
      const std::vector<Sample> one{contexts[c]};
      const auto moments = query_moments(*differentiable, g,
                                         {one, settings_.seed + static_cast<std::uint64_t>(c), 1, [](int) {},
                                          nullptr, to.weighs() ? &observer : nullptr})
                               .value();
      for (int layer = 0; layer < g.n_layers; ++layer)
        for (int head = 0; head < g.kv_heads(layer); ++head)
          to.add_moments(layer, head, moments[g.head_index(layer, head)]);
    }
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
                           "k=hadamard:tcq4,v=hadamard:tcq4,sink=1,encode=shaped", "kvant-2bit"}) {
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

TEST_F(OutsideModels, AreToldByWhatTheEngineMultipliesKeys) {
  const TinyModel balanced{.architecture = "qwen3", .qk_norm = true, .key_octaves = 3};
  TinyModelWriter(balanced).write((folder_ / "balanced.gguf").string());
  engine_ = Engine::load((folder_ / "balanced.gguf").string(), {.n_threads = 1}).value();
  const auto made = by_engine(parse_recipe("k=hadamard:tcq4,v=hadamard:tcq4,encode=shaped").value());
  ASSERT_TRUE(made.ok()) << made.error().message;
  const Geometry& g = engine_->geometry();
  const ModelParts parts = engine_->parts();
  int changed = 0;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    const ggml_tensor* in_file = parts.file.tensor("blk." + std::to_string(layer) + ".attn_k_norm.weight");
    const auto* before = static_cast<const float*>(parts.file.tensor_data(in_file));
    const auto* after = static_cast<const float*>(parts.weights.layer(layer).k_norm->data);
    for (int head = 0; head < g.kv_heads(layer); ++head) {
      const auto factors = made->constants.find(layer, head, Side::key, kKeyFactors);
      ASSERT_EQ(factors.size(), static_cast<std::size_t>(g.dim(layer)));
      for (int i = 0; i < g.dim(layer); ++i) {
        EXPECT_EQ(before[i] * factors[i], after[i]);
        changed += factors[i] != 1 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(changed, 0);
}

TEST_F(OutsideModels, AreRefusedWhatOnlyTheEngineFindsOut) {
  const auto refusal = [&](const char* text) {
    const auto made = OutsideCalibration::make(model(), {parse_recipe(text).value()}, settings_, 0, {});
    return made.ok() ? "" : made.error().message;
  };
  EXPECT_NE(refusal("kvant-4bit,encode=plain").find("has a budget"), std::string::npos);
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
