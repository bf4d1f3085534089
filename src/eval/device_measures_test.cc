// Runs one model on a device and on the CPU. The quality guard, the errors of the layers and llama.cpp's rows
// must agree.
#include <gtest/gtest.h>

#include "attention/device_backend.h"
#include "cache/cache_fixture.h"
#include "eval/layer_eval.h"
#include "eval/llama_reference.h"
#include "eval/quality_guard.h"
#include "model/device_machine.h"
#include "model/tiny_model.h"

namespace kvant {
namespace {

using testing::device_at;
using testing::kPlaces;
using testing::Place;
using testing::some_tokens;

// The recipes cover transforms that the library applies, transforms that are matrices of the graph,
// transforms that differ between heads, unquantized tokens, and windows.
constexpr const char* kRecipes[] = {"k=hadamard:tok4g32,v=tok2g32,sink=4",
                                    "kvant-4bit",
                                    "vecinfer-2bit",
                                    "k=hadamard+rhadamard:tok8g64,v=hadamard+rhadamard:tok4g64,window=128",
                                    "k=ch4g128,v=tok2g128,sink=4,protect=0.1",
                                    "bf16"};

// The original rows of a device come from its tail. The rounding of the tail to BF16 is therefore no error on
// a device. On the CPU, this rounding counts.
constexpr double kBf16Rounding = 1.5e-3;

// Runs a model and its backend on the CPU or on a device.
struct Measured {
  Measured(const std::string& path, const std::shared_ptr<ComputeDevice>& device)
      : backend(device == nullptr ? make_reference_backend() : make_device_backend(device->pages())),
        engine(Engine::load(path, {.n_threads = 1, .device = device}).value()) {}

  PlacedPlan plan(const std::string& recipe) const {
    return backend->place(testing::plan_for(recipe + ",tail=bf16", engine->geometry())).value();
  }
  GuardReport guard(const std::string& recipe, int n_prompt, int n_decoded) const {
    const auto placed = plan(recipe);
    QualityGuard guard(*backend, *placed, {.every = 3});
    Cache cache(placed, 0);
    const SequenceId s = cache.add();
    const auto tokens = some_tokens(n_prompt + n_decoded, 1);
    for (int t = 0; t < n_prompt + n_decoded;) {
      const int n = t < n_prompt ? n_prompt : 1;
      const EngineInput input{s, std::span(tokens).subspan(t, n), t < n_prompt, n};
      const Status status = engine->step(cache, guard, {&input, 1}, {});
      EXPECT_TRUE(status.ok()) << status.error().message;
      t += n;
    }
    return guard.report();
  }
  LayerResult layers(const std::string& reference, const QualityOptions& options) const {
    std::vector<LayerCandidate> candidates;
    for (const char* recipe : kRecipes) candidates.push_back({recipe, plan(recipe)});
    const auto result =
        evaluate_layers({some_tokens(1200, 2), {}}, *engine, *backend, {"reference", plan(reference)},
                        candidates, options, [](std::int64_t) {});
    EXPECT_TRUE(result.ok()) << result.error().message;
    return *result;
  }

  std::unique_ptr<AttentionBackend> backend;
  std::unique_ptr<Engine> engine;
};

// Each test runs with a model that has sliding windows and with a model that has none.
class DeviceMeasures : public ::testing::TestWithParam<std::tuple<Place, bool>> {
 protected:
  void SetUp() override {
    const auto device = device_at(place());
    if (device == nullptr) GTEST_SKIP() << "no such device";
    TinyModelWriter(slides() ? tiny_windowed() : TinyModel{}).write(file_.path());
    host_.emplace(file_.path(), nullptr);
    device_.emplace(file_.path(), device);
  }
  static const Place& place() { return std::get<0>(GetParam()); }
  static bool slides() { return std::get<1>(GetParam()); }

  TinyFile file_{"measured.gguf"};
  std::optional<Measured> host_, device_;
};

INSTANTIATE_TEST_SUITE_P(Places, DeviceMeasures,
                         ::testing::Combine(::testing::ValuesIn(kPlaces), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) +
                                  (std::get<1>(info.param) ? "_windowed" : "");
                         });

// The check ends before the guard moves on to another head. A device finds the new head's rows in the tail
// immediately, while the CPU has to wait for new tokens.
TEST_P(DeviceMeasures, TheGuardFindsWhatItFindsOnTheCpu) {
  for (const std::string recipe : kRecipes) {
    const GuardReport found = device_->guard(recipe, 300, 90), right = host_->guard(recipe, 300, 90);
    EXPECT_EQ(found.steps, 90) << recipe;
    EXPECT_EQ(found.bytes, right.bytes);
    // A device never seals BF16 pages.
    if (recipe == "bf16") {
      EXPECT_EQ(found.checks, 0);
      continue;
    }
    EXPECT_EQ(found.checks, right.checks) << recipe;
    if (!slides()) {
      EXPECT_EQ(found.checks, 2 * 30) << recipe;
    }
    for (std::size_t i = 0; i < right.layers.size(); ++i) {
      const GuardedLayer &layer = found.layers[i], &of_cpu = right.layers[i];
      EXPECT_EQ(layer.kv_head, of_cpu.kv_head);
      EXPECT_EQ(layer.checks, of_cpu.checks) << recipe;
      const auto expect_near = [&](const OutputError& error, const OutputError& expected) {
        EXPECT_NEAR(error.relative(), expected.relative(),
                    place().from_cpu * expected.relative() + kBf16Rounding)
            << recipe;
      };
      expect_near(layer.error, of_cpu.error);
      expect_near(layer.keys, of_cpu.keys);
    }
  }
}

TEST_P(DeviceMeasures, TheGuardGoesOnToTheNextHead) {
  const GuardReport found = device_->guard("k=hadamard:tok4g32,v=tok2g32,sink=4", 280, 140);
  const GuardReport right = host_->guard("k=hadamard:tok4g32,v=tok2g32,sink=4", 280, 140);
  for (std::size_t i = 0; i < found.layers.size(); ++i) {
    EXPECT_EQ(found.layers[i].kv_head, right.layers[i].kv_head);
    // A layer with a sliding window rarely has visible sealed pages.
    if (!slides() || i == 1) {
      EXPECT_GT(found.layers[i].checks, 32);
    }
  }
}

TEST_P(DeviceMeasures, LayersErrorsAreThoseOnTheCpu) {
  for (const bool all_prompt : {false, true}) {
    const std::string reference =
        all_prompt ? "k=hadamard+rhadamard:tok8g64,v=hadamard+rhadamard:tok8g64" : "bf16";
    const QualityOptions options{.context = 320, .chunks = 1, .all_prompt = all_prompt};
    const LayerResult found = device_->layers(reference, options), right = host_->layers(reference, options);
    for (std::size_t r = 0; r < right.rows.size(); ++r) {
      SCOPED_TRACE(right.rows[r].name + " against " + reference);
      const LayerEffects &effects = found.rows[r].effects, &of_cpu = right.rows[r].effects;
      ASSERT_EQ(effects.coverage.size(), of_cpu.coverage.size());
      for (int layer = 0; layer < effects.n_layers; ++layer) {
        const OutputError error = effects.of_layer(layer), expected = of_cpu.of_layer(layer);
        EXPECT_EQ(error.values, expected.values);
        EXPECT_NEAR(error.relative(), expected.relative(),
                    (0.05 + place().between_ways) * expected.relative() + 0.003);
        if (effects.coverage.empty()) continue;
        const MassCoverage &mass = effects.coverage[layer], &expected_mass = of_cpu.coverage[layer];
        EXPECT_EQ(mass.rows, expected_mass.rows);
        EXPECT_NEAR(mass.unsealed, expected_mass.unsealed, 0.01 * expected_mass.unsealed);
        EXPECT_NEAR(mass.protected_mass, expected_mass.protected_mass, 0.05 * expected_mass.protected_mass);
      }
    }
  }
}

// The graph without flash attention is used because a CUDA backend may lack llama.cpp's flash attention.
TEST_P(DeviceMeasures, RowsOfLlamaCppPredictWhatTheyPredictOnTheCpu) {
  constexpr int kContext = 128;
  constexpr const char* kRow = "llama.cpp:f16-plain";
  const Geometry& geometry = device_->engine->geometry();
  const int n_vocab = device_->engine->n_vocab();
  const auto tokens = some_tokens(kContext, 3);
  const auto predictions = [&](const LlamaPlace& where) {
    const auto llama = LlamaReference::load_f32(file_.path(), where).value();
    const auto row = llama->source(kRow, kContext, /*step_tokens=*/100, /*n_threads=*/1).value();
    std::vector<float> logits(static_cast<std::size_t>(kContext) * n_vocab);
    EXPECT_TRUE(row->begin().ok());
    EXPECT_TRUE(row->step(tokens, /*is_prompt=*/true, {logits.data(), kContext, n_vocab}).ok());
    return logits;
  };
  const auto device = device_at(place());
  const auto right = predictions({});
  const float largest = std::abs(*std::ranges::max_element(right, {}, [](float x) { return std::abs(x); }));
  for (const bool kv_offload : {true, false}) {
    const auto found = predictions({device.get(), kv_offload, geometry});
    for (std::size_t i = 0; i < found.size(); ++i)
      ASSERT_NEAR(found[i], right[i], 2e-3 * largest)
          << (kv_offload ? "with" : "without") << " its cache, " << i;
  }
}

}  // namespace
}  // namespace kvant
