// Compares gradients on a device with gradients on the CPU. One device is host memory, and a GPU is tested if
// the machine has one.
#include "calibrate/device_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "calibrate/score_gradient.h"
#include "model/architecture.h"
#include "model/device_machine.h"
#include "model/engine.h"
#include "model/hparams.h"
#include "model/tiny_variants.h"

namespace kvant {
namespace {

constexpr int kRows = 300;  // two pages are sealed, and a third is begun
constexpr double kTolerance = 1e-4;

std::vector<float> noise(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> all(n);
  for (float& x : all) x = normal(random);
  return all;
}

// Returns the norm of the difference relative to the norm of the expected values.
template <class Got, class Expected>
double difference(const Got& got, const Expected& expected, std::size_t n) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < n; ++i) {
    difference += std::pow(double{got[i]} - double{expected[i]}, 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  EXPECT_GT(norm, 0);
  return std::sqrt(difference / norm);
}
double head_difference(MatrixView<const float> got, MatrixView<const float> expected, int n_rows) {
  double difference = 0, norm = 0;
  EXPECT_EQ(got.rows, expected.rows);
  EXPECT_EQ(got.cols, expected.cols);
  for (int r = 0; r < n_rows; ++r) {
    for (int i = 0; i < expected.cols; ++i) {
      difference += std::pow(double{got.row(r)[i]} - expected.row(r)[i], 2);
      norm += std::pow(double{expected.row(r)[i]}, 2);
    }
  }
  EXPECT_GT(norm, 0);
  return std::sqrt(difference / norm);
}

struct BothModels {
  BothModels(const TinyModel& tiny, std::shared_ptr<ComputeDevice> on)
      : file("device_model.gguf"), device(std::move(on)) {
    TinyModelWriter(tiny).write(file.path());
    engine = Engine::load(file.path(), {.n_threads = 1}).value();
    device_engine = Engine::load(file.path(), {.n_threads = 1, .device = device}).value();
    host_model = make_host_model(engine->parts(), /*n_threads=*/1, GemmPrecision::f32);
  }
  const Hparams& hparams() const { return engine->parts().hparams; }
  void make() {
    ASSERT_TRUE(has_known_layers(engine->parts()));
    auto made = make_device_model(device_engine->parts(), *device, kRows);
    ASSERT_TRUE(made.ok()) << made.error().message;
    device_model = std::move(made).value();
    ASSERT_TRUE(host_model->begin(kRows).ok());
    ASSERT_TRUE(device_model->begin(kRows).ok());
  }

  TinyFile file;
  std::shared_ptr<ComputeDevice> device;
  std::unique_ptr<Engine> engine, device_engine;
  std::unique_ptr<DifferentiableModel> host_model, device_model;
};

// Returns a model of every architecture that has gradients, and models whose weights must be expanded.
std::vector<Variant> known_variants() {
  std::vector<Variant> all = variants();
  for (const Variant& variant : dense_variants()) {
    const Architecture& a = *find_architecture(variant.model.architecture);
    // Scales of logits, and of queries by their positions, have no derivative.
    if (a.logit_scale == LogitScale::none && find_step<TemperQueries>(a.layer.attention) == nullptr)
      all.push_back(variant);
  }
  all.push_back({"bf16_weights", {.matrix_type = GGML_TYPE_BF16}});
  all.push_back({"f16_weights", {.matrix_type = GGML_TYPE_F16}});
  all.push_back({"q8_weights", {.matrix_type = GGML_TYPE_Q8_0}});
  all.push_back({"q4_0_weights", {.matrix_type = GGML_TYPE_Q4_0}});
  all.push_back({"q4_1_weights", {.matrix_type = GGML_TYPE_Q4_1}});
  all.push_back({"q5_0_weights", {.matrix_type = GGML_TYPE_Q5_0}});
  // These types have blocks of 256 channels.
  const TinyModel wide{.n_embd = 256, .n_ff = 256};
  for (const auto& [name, type] : {std::pair("q4_k_weights", GGML_TYPE_Q4_K),
                                   {"q5_k_weights", GGML_TYPE_Q5_K},
                                   {"q6_k_weights", GGML_TYPE_Q6_K}}) {
    all.push_back({name, wide});
    all.back().model.matrix_type = type;
  }
  return all;
}

// Calls test(host model, device model) for each device of this machine.
template <class Test>
void on_each_device(const TinyModel& tiny, const Test& test) {
  for (const testing::Place& place : testing::kPlaces) {
    SCOPED_TRACE(place.name);
    const std::shared_ptr<ComputeDevice> device = testing::device_at(place);
    if (device == nullptr) continue;
    BothModels both(tiny, device);
    ASSERT_NO_FATAL_FAILURE(both.make());
    ASSERT_NO_FATAL_FAILURE(test(both));
  }
}

class DeviceGradients : public ::testing::TestWithParam<Variant> {};

TEST_P(DeviceGradients, AreThoseOfTheCpu) {
  on_each_device(GetParam().model, [&](BothModels& both) {
    const Hparams& h = both.hparams();
    const std::size_t size = static_cast<std::size_t>(kRows) * h.n_embd;
    for (int layer = 0; layer < h.n_layers; ++layer) {
      SCOPED_TRACE(layer);
      const std::vector<float> x = noise(size, 1 + layer), gradient = noise(size, 100 + layer);
      const auto view = [&](const std::vector<float>& of) {
        return MatrixView<const float>(of.data(), kRows, h.n_embd);
      };
      const auto forward = [&](DifferentiableModel& model) {
        std::vector<float> to = x;
        EXPECT_TRUE(model.forward(layer, {to.data(), kRows, h.n_embd}).ok());
        return to;
      };
      EXPECT_LT(difference(forward(*both.device_model), forward(*both.host_model), size), kTolerance);
      std::vector<float> here = gradient, there = gradient;
      const auto expected = both.host_model->backward(layer, view(x), {here.data(), kRows, h.n_embd});
      const auto got = both.device_model->backward(layer, view(x), {there.data(), kRows, h.n_embd});
      ASSERT_TRUE(expected.ok());
      ASSERT_TRUE(got.ok()) << got.error().message;
      EXPECT_LT(difference(there, here, size), kTolerance);
      for (int head = 0; head < h.n_kv_heads; ++head) {
        for (const Side side : kSides) {
          EXPECT_LT(head_difference((*got)->stored(head, side), (*expected)->stored(head, side), kRows),
                    kTolerance);
        }
        const auto moments = (*got)->query_moments(head), of_cpu = (*expected)->query_moments(head);
        ASSERT_EQ(moments.size(), of_cpu.size());
        EXPECT_LT(difference(moments, of_cpu, of_cpu.size()), kTolerance);
      }
      for (int head = 0; head < h.n_heads; ++head) {
        EXPECT_LT(head_difference((*got)->output_gradient(head), (*expected)->output_gradient(head), kRows),
                  kTolerance);
        const auto outputs = [&](const LayerGradient& of) {
          std::vector<float> all(static_cast<std::size_t>(kPageTokens) * h.head_dim);
          of.attention(head).attend(/*block=*/1, {all.data(), kPageTokens, h.head_dim});
          return all;
        };
        const std::vector<float> of_cpu = outputs(**expected);
        EXPECT_LT(difference(outputs(**got), of_cpu, of_cpu.size()), kTolerance);
      }
    }
  });
}

TEST_P(DeviceGradients, BeginWhereThoseOfTheCpuDo) {
  on_each_device(GetParam().model, [&](BothModels& both) {
    const Hparams& h = both.hparams();
    const std::vector<float> x = noise(static_cast<std::size_t>(kRows) * h.n_embd, 7);
    const std::vector<std::int32_t> words(kRows, 5);
    const auto score = [&](DifferentiableModel& model) {
      return score_gradient(model.parts(), model.vocabulary(), {x.data(), kRows, h.n_embd}, words, /*seed=*/3,
                            /*n_threads=*/2);
    };
    const auto expected = score(*both.host_model), got = score(*both.device_model);
    ASSERT_TRUE(expected.ok());
    ASSERT_TRUE(got.ok()) << got.error().message;
    EXPECT_LT(difference(got->gradient, expected->gradient, x.size()), kTolerance);
    EXPECT_LT(difference(got->log_probabilities, expected->log_probabilities, kRows), kTolerance);
  });
}

INSTANTIATE_TEST_SUITE_P(Variants, DeviceGradients, ::testing::ValuesIn(known_variants()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(DeviceModel, TakesContextsOfAnyLength) {
  on_each_device(TinyModel{}, [&](BothModels& both) {
    const int n_embd = both.hparams().n_embd;
    for (const int n : {64, 200, kRows}) {
      std::vector<float> here = noise(static_cast<std::size_t>(n) * n_embd, n), there = here;
      ASSERT_TRUE(both.host_model->begin(n).ok());
      ASSERT_TRUE(both.device_model->begin(n).ok());
      ASSERT_TRUE(both.host_model->forward(0, {here.data(), n, n_embd}).ok());
      ASSERT_TRUE(both.device_model->forward(0, {there.data(), n, n_embd}).ok());
      EXPECT_LT(difference(there, here, here.size()), kTolerance);
    }
  });
}

}  // namespace
}  // namespace kvant
