#include "calibrate/passage_queries.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "attention/attention.h"
#include "calibrate/calibrate.h"
#include "calibrate/f32_layer.h"
#include "calibrate/first_use.h"
#include "calibrate/learn_page_metrics.h"
#include "calibrate/needs.h"
#include "calibrate/rope_turns.h"
#include "model/hparams.h"
#include "model/tiny_engines.h"
#include "model/weights.h"
#include "recipe/builtin.h"

namespace kvant::passage_queries_test {
namespace {

constexpr const char* kSampled = "k=hadamard:tcq2,v=hadamard:tcq2,sink=4,encode=sampled";

class PassageQueries : public testing::TinyEngine {
 protected:
  PassageQueries() {
    std::mt19937 random(3);
    for (int i = 0; i < 20000; ++i) text_ += static_cast<char>('a' + random() % 26);
  }

  // Returns the queries of layer 0 before RoPE [n, n_heads * d], which are linear in the normed embeddings.
  std::vector<double> queries(const std::vector<std::int32_t>& tokens) const {
    const ModelParts parts = engine_->parts();
    const int n_embd = parts.hparams.n_embd, n_q = parts.hparams.n_heads * parts.hparams.head_dim;
    const std::vector<float> x = embedded(parts, tokens);
    const std::vector<float> gains = f32_values(parts, parts.weights.layer(0).attn_norm, 1);
    F32Layer layer;
    load_f32_layer(parts, 0, 1, layer);
    std::vector<double> all;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const float* row = x.data() + t * n_embd;
      double square = 0;
      for (int i = 0; i < n_embd; ++i) square += double{row[i]} * row[i] / n_embd;
      for (int q = 0; q < n_q; ++q) {
        double sum = 0;
        for (int i = 0; i < n_embd; ++i)
          sum += double{layer.qkv[static_cast<std::size_t>(q) * n_embd + i]} * row[i] * gains[i];
        all.push_back(sum / std::sqrt(square + parts.hparams.norm_epsilon));
      }
    }
    return all;
  }

  Calibration calibrated(const std::string& recipe, const CalibrationSettings& settings, int n_threads) {
    CalibrationRequest request;
    request.recipes = {parse_recipe(recipe).value()};
    request.text = text_;
    request.settings = settings;
    request.n_threads = n_threads;
    return calibrate(*engine_, *backend_, request).value();
  }

  std::string text_;
};

TEST_F(PassageQueries, HaveTheMomentsOfProjectionsBeforeRope) {
  const Geometry& g = engine_->geometry();
  const auto samples = samples_of_text(engine_->tokenizer(), g.trained_context, text_,
                                       {.passages = 1, .length = kSampledTokens, .seed = 4});
  ASSERT_TRUE(samples.ok());
  const Sample& sample = samples->front();
  EXPECT_GT(sample.position_offset, 0);
  const auto found = sampled_moments({engine_.get(), backend_.get()}, sample,
                                     rope_turns(engine_->parts(), g, 1), 1, nullptr);
  ASSERT_TRUE(found.ok()) << found.error().message;
  const std::vector<double> all = queries(sample.tokens);
  const int d = g.head_dim, n_q = g.n_heads * d;
  for (int kv_head = 0; kv_head < g.kv_heads(0); ++kv_head) {
    double difference = 0, energy = 0;
    for (int i = 0; i < d; ++i) {
      for (int j = 0; j < d; ++j) {
        double wanted = 0;
        for (int t = kFirstSampledQuery; t < kSampledTokens; ++t) {
          for (int h = kv_head * g.group(0); h < (kv_head + 1) * g.group(0); ++h) {
            const double* q = all.data() + static_cast<std::ptrdiff_t>(t) * n_q + h * d;
            wanted += q[i] * q[j];
          }
        }
        const double got = (*found)[g.head_index(0, kv_head)][static_cast<std::size_t>(i) * d + j];
        difference += (got - wanted) * (got - wanted);
        energy += wanted * wanted;
      }
    }
    EXPECT_GT(energy, 0);
    EXPECT_LT(difference, 1e-4 * energy) << kv_head;
  }
}

// The metric must not depend on how many samples and passages a calibration reads, so every command makes the
// same metric.
TEST_F(PassageQueries, GiveTheSameMetricForAnySettingsThreadsAndWayOfCalibrating) {
  const auto metrics = [](const Calibration& made) {
    std::vector<float> all;
    made.constants.for_each([&](int, int, Side, const std::string& name, const std::vector<float>& values) {
      if (name == "sampled/hadamard:page-metric") all.insert(all.end(), values.begin(), values.end());
    });
    return all;
  };
  const CalibrationSettings small{.samples = 2, .length = 150, .rows = 100, .passages = 1};
  const std::vector<float> wanted = metrics(calibrated(kSampled, small, 1));
  const Geometry& g = engine_->geometry();
  ASSERT_EQ(wanted.size(), static_cast<std::size_t>(g.n_all_kv_heads()) * g.head_dim * (8 + 2));
  EXPECT_EQ(metrics(calibrated(kSampled, {.samples = 5, .length = 200, .rows = 300, .passages = 2}, 3)),
            wanted);
  EXPECT_EQ(metrics(calibrated("k=hadamard:tcq4,v=hadamard:vq-d2b4,sink=1,encode=sampled", small, 1)),
            wanted);
  const Recipe recipe = parse_recipe(kSampled).value();
  const auto used = load_or_calibrate(*engine_, *backend_, recipe, {"", 1, nullptr, text_});
  ASSERT_TRUE(used.ok()) << used.error().message;
  std::vector<float> at_first_use;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (int kv_head = 0; kv_head < g.kv_heads(layer); ++kv_head) {
      const auto values = (*used)->find(layer, kv_head, Side::key, "page-metric");
      at_first_use.insert(at_first_use.end(), values.begin(), values.end());
    }
  }
  EXPECT_EQ(at_first_use, wanted);
}

// A plan must not take the metric of a calibration for the sampled one, or the other way round.
TEST_F(PassageQueries, HaveAFileAndConstantsOfTheirOwn) {
  const Geometry& g = engine_->geometry();
  const Recipe sampled = parse_recipe(kSampled).value();
  Recipe shaped = sampled;
  shaped.encode = Encode::shaped;
  EXPECT_NE(first_use_path("cache", sampled, g, "model"), first_use_path("cache", shaped, g, "model"));
  const Calibration made = calibrated(kSampled, {.length = 150, .passages = 1}, 1);
  EXPECT_TRUE(constants_for(sampled, g, made.constants).ok());
  EXPECT_FALSE(constants_for(shaped, g, made.constants).ok());
}

}  // namespace
}  // namespace kvant::passage_queries_test
