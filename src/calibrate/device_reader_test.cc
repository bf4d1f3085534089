// Tests calibration with the model on a device. The device is host memory, with the graphs, tables and calls
// of a GPU.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/device_backend.h"
#include "calibrate/calibrate.h"
#include "calibrate/probe_site.h"
#include "calibrate/read_samples.h"
#include "model/device_machine.h"
#include "model/engine_decorator.h"
#include "model/tiny_engines.h"
#include "model/tiny_variants.h"

namespace kvant {
namespace {

class DeviceReader : public testing::TinyEngine {
 protected:
  SampleReader on_device() { return {device_engine_.get(), device_backend_.get(), device_.get()}; }

  const std::shared_ptr<ComputeDevice> device_ = std::make_shared<testing::HostDevice>();
  const std::unique_ptr<AttentionBackend> device_backend_ = make_device_backend(device_->pages());
  const std::unique_ptr<Engine> device_engine_ =
      Engine::load(file_->path(), {.n_threads = 1, .device = device_}).value();
};

// Returns the norm of the difference relative to the norm of `b`.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference += std::pow(double{a[i]} - b[i], 2);
    norm += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

TEST_F(DeviceReader, CapturesWhatTheCpuCaptures) {
  const Geometry& g = engine_->geometry();
  std::vector<Sample> samples(2);
  std::mt19937 random(3);
  for (Sample& sample : samples) {
    for (int i = 0; i < 200; ++i)
      sample.tokens.push_back(static_cast<std::int32_t>(3 + random() % (TinyModelWriter::kVocabulary - 3)));
    sample.position_offset = static_cast<int>(random() % 100);
  }
  const CaptureSize size{.samples = 1, .length = 200, .rows = 100, .passages = 1, .seed = 1};
  Capture here(g, size), there(g, size);
  const auto none = [](int) {};
  ASSERT_TRUE(read_samples(*engine_, *backend_, samples, 0, here, none, nullptr).ok());
  ASSERT_TRUE(read_samples(*device_engine_, *device_backend_, samples, 0, there, none, nullptr).ok());
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (int head = 0; head < g.n_kv_heads; ++head) {
      for (const Side side : kSides) {
        EXPECT_LT(difference(there.rows(layer, head, side, false), here.rows(layer, head, side, false)), 0.02)
            << layer << side_name(side);
        EXPECT_LT(difference(there.passage(0, layer, head, side), here.passage(0, layer, head, side)), 0.02);
      }
    }
    for (int head = 0; head < g.n_heads; ++head)
      EXPECT_LT(difference(there.passage_queries(0, layer, head), here.passage_queries(0, layer, head)),
                0.02);
  }
}

// The device has no kernels for the heads of the tiny Gemma 4, so the cache lies in host memory. The layers
// must be captured anyway.
TEST(DeviceReaderWithCachesInHostMemory, CapturesWhatTheCpuCaptures) {
  TinyModel gemma4;
  for (const Variant& variant : variants_of_unlike_layers()) {
    if (variant.name == std::string("gemma4")) gemma4 = variant.model;
  }
  const auto file = write_tiny_model(gemma4);
  const auto device = std::make_shared<testing::HostDevice>();
  const auto engine = Engine::load(file->path(), {.n_threads = 1}).value(),
             device_engine = Engine::load(file->path(), {.n_threads = 1, .device = device}).value();
  const auto backend = make_reference_backend();
  std::vector<Sample> samples(1);
  samples[0].tokens = testing::some_tokens(200, 4);
  const Geometry& g = engine->geometry();
  const CaptureSize size{.samples = 1, .length = 200, .rows = 100, .passages = 0, .seed = 1};
  Capture here(g, size), there(g, size);
  const auto none = [](int) {};
  ASSERT_TRUE(read_samples(*engine, *backend, samples, 0, here, none, nullptr).ok());
  ASSERT_TRUE(read_samples(*device_engine, *backend, samples, 0, there, none, nullptr).ok());
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (int head = 0; head < g.kv_heads(layer); ++head) {
      for (const Side side : kSides)
        EXPECT_LT(difference(there.rows(layer, head, side, false), here.rows(layer, head, side, false)), 0.01)
            << layer << side_name(side);
    }
  }
}

TEST_F(DeviceReader, GivesConstantsAsGoodAsTheCpus) {
  CalibrationRequest request;
  request.recipes = {parse_recipe("k=smooth+hadamard:vq-d4b4,v=mean:nvq-d4b4,sink=4").value()};
  std::mt19937 random(5);
  for (int i = 0; i < 4000; ++i) request.text += static_cast<char>('a' + random() % 26);
  request.settings = {.samples = 3, .length = 150, .rows = 200, .passages = 1, .seed = 7};
  request.n_threads = 1;
  for (const bool self : {false, true}) {
    request.settings.self = self;
    request.reader = {};
    const auto here = calibrate(*engine_, *backend_, request);
    request.reader = on_device();
    const auto there = calibrate(*engine_, *backend_, request);
    const auto again = calibrate(*engine_, *backend_, request);
    ASSERT_TRUE(here.ok()) << here.error().message;
    ASSERT_TRUE(there.ok()) << there.error().message;
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(there->quality.front().output_error, again->quality.front().output_error);
    if (self) continue;  // texts that the model writes diverge where two tokens are nearly equally likely
    EXPECT_NEAR(there->quality.front().key_error / here->quality.front().key_error, 1, 0.05);
    EXPECT_NEAR(there->quality.front().value_error / here->quality.front().value_error, 1, 0.05);
  }
}

// Returns the sensitivities by place and format, in the order of the constants.
std::vector<float> sensitivities(const Calibration& calibration) {
  std::vector<float> all;
  calibration.constants.for_each(
      [&](int, int, Side, const std::string& name, const std::vector<float>& values) {
        if (name.find("sensitivity") != std::string::npos)
          all.insert(all.end(), values.begin(), values.end());
      });
  return all;
}

CalibrationRequest request_on_letters() {
  CalibrationRequest request;
  std::mt19937 random(5);
  for (int i = 0; i < 4000; ++i) request.text += static_cast<char>('a' + random() % 26);
  request.settings = {
      .samples = 2, .length = 150, .rows = 100, .passages = 1, .context_length = 400, .seed = 3};
  request.n_threads = 1;
  return request;
}

// The test covers measured and estimated sensitivities, with and without query-weighted errors of K.
TEST_F(DeviceReader, WeighsHeadsAsTheCpuDoes) {
  CalibrationRequest request = request_on_letters();
  for (const char* encode : {"plain", "shaped"}) {
    request.recipes = {parse_recipe(std::string("k=hadamard:tcq2,v=tcq2,sink=4,budget=2.6,"
                                                "ladder=tcq1+tcq2+tcq3+tcq4,encode=") +
                                    encode)
                           .value()};
    for (const bool by_run : {true, false}) {
      SCOPED_TRACE(std::string(encode) + (by_run ? " by run" : " by gradients"));
      request.settings.measure = by_run;
      request.reader = {};
      const auto here = calibrate(*engine_, *backend_, request);
      request.reader = on_device();
      const auto there = calibrate(*engine_, *backend_, request);
      ASSERT_TRUE(here.ok()) << here.error().message;
      ASSERT_TRUE(there.ok()) << there.error().message;
      ASSERT_EQ(sensitivities(*here).size(), 2U * 2 * 2 * 4);
      EXPECT_LT(difference(sensitivities(*there), sensitivities(*here)), 0.05);
    }
  }
}

// NoisyEngine adds noise to another engine's logits, which imitates coarse rounding of activations.
class NoisyEngine final : public EngineDecorator {
 public:
  NoisyEngine(Engine& engine, float deviation) : EngineDecorator(engine), noise_(0, deviation) {}
  Status step(Cache& cache, AttentionBackend& backend, std::span<const EngineInput> inputs,
              MatrixView<float> logits) override {
    KVANT_RETURN_IF_ERROR(EngineDecorator::step(cache, backend, inputs, logits));
    for (int r = 0; r < logits.rows; ++r)
      for (int i = 0; i < logits.cols; ++i) logits.row(r)[i] += noise_(random_);
    return {};
  }

 private:
  std::normal_distribution<float> noise_;
  std::mt19937 random_{11};
};

// A device's engine rounds activations to 8 bits in products with quantized weights. Sensitivities must not
// depend on that rounding.
TEST_F(DeviceReader, WeighsHeadsByNothingThatTheDeviceRounds) {
  NoisyEngine noisy(*device_engine_, 0.3F);
  CalibrationRequest request = request_on_letters();
  request.recipes = {
      parse_recipe("k=hadamard:tcq2,v=tcq2,sink=4,budget=2.6,ladder=tcq1+tcq2+tcq3+tcq4").value()};
  for (const bool by_run : {true, false}) {
    SCOPED_TRACE(by_run ? "by run" : "by gradients");
    request.settings.measure = by_run;
    request.reader = {};
    const auto here = calibrate(*engine_, *backend_, request);
    request.reader = {&noisy, device_backend_.get(), device_.get()};
    const auto there = calibrate(*engine_, *backend_, request);
    ASSERT_TRUE(here.ok()) << here.error().message;
    ASSERT_TRUE(there.ok()) << there.error().message;
    EXPECT_LT(difference(sensitivities(*there), sensitivities(*here)), 0.05);
  }
}

// The CPU's engine rounds activations, too. The gradients of a device must therefore be compared with the
// device's engine in F32.
TEST_F(DeviceReader, KnowsGradientsWhateverTheCpuRounds) {
  NoisyEngine noisy(*engine_, 3);
  CalibrationRequest request = request_on_letters();
  request.recipes = {
      parse_recipe("k=hadamard:tcq2,v=tcq2,sink=4,budget=2.6,ladder=tcq1+tcq2+tcq3+tcq4").value()};
  request.reader = on_device();
  const auto exact = calibrate(*engine_, *backend_, request);
  const auto rounded = calibrate(noisy, *backend_, request);
  ASSERT_TRUE(exact.ok()) << exact.error().message;
  ASSERT_TRUE(rounded.ok()) << rounded.error().message;
  EXPECT_EQ(sensitivities(*rounded), sensitivities(*exact));
}

// ShortEngine is an engine on a device whose memory another program takes after some steps.
class ShortEngine final : public EngineDecorator {
 public:
  ShortEngine(Engine& engine, int n_steps) : EngineDecorator(engine), left_(n_steps) {}
  Status step(Cache& cache, AttentionBackend& backend, std::span<const EngineInput> inputs,
              MatrixView<float> logits) override {
    if (left_-- <= 0) return shortage("out of memory on the device");
    return EngineDecorator::step(cache, backend, inputs, logits);
  }

 private:
  int left_;
};

// Memory runs short while samples are read or probes run. Gradients have memory of their own.
TEST_F(DeviceReader, LeavesTheRestToTheCpuWhereItsMemoryIsShort) {
  CalibrationRequest request = request_on_letters();
  request.settings.samples = 4;
  request.settings.measure = true;
  request.recipes = {
      parse_recipe("k=smooth+hadamard:tok2g32,v=tok2g32,sink=4,budget=4,ladder=tok2g32+tok4g32").value()};
  const auto here = calibrate(*engine_, *backend_, request);
  ASSERT_TRUE(here.ok()) << here.error().message;
  for (const int n_steps : {0, 3, 8}) {
    ShortEngine engine(*device_engine_, n_steps);
    request.reader = {&engine, device_backend_.get(), device_.get()};
    ::testing::internal::CaptureStderr();
    const auto there = calibrate(*engine_, *backend_, request);
    const std::string said = ::testing::internal::GetCapturedStderr();
    ASSERT_TRUE(there.ok()) << there.error().message;
    EXPECT_NE(said.find("the CPU "), std::string::npos) << said;
    EXPECT_LT(difference(sensitivities(*there), sensitivities(*here)), 0.05);
  }
}

// Gradients of mixtures of experts are not supported, and products with their quantized weights round
// activations.
TEST(DeviceReaders, WeighMixturesOfExpertsOnTheDevice) {
  TinyModel model{.architecture = "qwen3moe", .qk_norm = true, .n_experts = 4, .n_ff_expert = 64};
  model.integers = {{"expert_used_count", 2}};
  model.matrix_type = GGML_TYPE_Q4_0;
  const auto file = write_tiny_model(model);
  const auto backend = make_reference_backend();
  const auto engine = Engine::load(file->path(), {.n_threads = 1, .weights = WeightMode::f32}).value();
  CalibrationRequest request = request_on_letters();
  request.recipes = {
      parse_recipe("k=hadamard:tok2g32,v=tok2g32,sink=4,budget=4,ladder=tok2g32+tok4g32").value()};
  const auto here = calibrate(*engine, *backend, request);
  ASSERT_TRUE(here.ok()) << here.error().message;
  for (const testing::Place& place : testing::kPlaces) {
    const auto device = testing::device_at(place);
    if (device == nullptr) continue;
    SCOPED_TRACE(place.name);
    const auto device_backend = make_device_backend(device->pages());
    const auto device_engine = Engine::load(file->path(), {.n_threads = 1, .device = device}).value();
    request.reader = {device_engine.get(), device_backend.get(), device.get()};
    ::testing::internal::CaptureStderr();
    const auto there = calibrate(*engine, *backend, request);
    const std::string said = ::testing::internal::GetCapturedStderr();
    ASSERT_TRUE(there.ok()) << there.error().message;
    EXPECT_EQ(said.find("the CPU"), std::string::npos) << said;
    EXPECT_LT(difference(sensitivities(*there), sensitivities(*here)), 0.05);
  }
}

TEST_F(DeviceReader, LeavesProbesThatItCannotRunToTheCpu) {
  const SampleReader host{engine_.get(), backend_.get()};
  const auto site_of = [&](const char* recipe) {
    return probe_site(on_device(), host, parse_recipe(recipe).value(), Constants{});
  };
  const ProbeSite served = site_of("k=hadamard:tcq2,v=tcq2,sink=4,budget=2.6,ladder=tcq2+tcq3");
  EXPECT_EQ(served.model.engine, device_engine_.get());
  EXPECT_EQ(to_string(served.base(parse_recipe("k=tcq2,v=tcq2,sink=4").value())),
            "k=tok8g32,v=tok8g32,sink=4");
  EXPECT_EQ(served.barely_changed(parse_recipe("k=tcq2,v=tcq2,sink=4").value()).sink, 5);
  EXPECT_EQ(served.barely_changed(parse_recipe("k=tcq2,v=tcq2,sink=128").value()).sink, 127);
  const ProbeSite refused = site_of("k=f16,v=f16,budget=16,ladder=f16+bf16");
  EXPECT_EQ(refused.model.engine, engine_.get());
  EXPECT_EQ(refused.rest, "bf16");
}

}  // namespace
}  // namespace kvant
