#include "calibrate/adapter_data.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kvant {
namespace {

constexpr int kLength = 420;
constexpr int kBatch = 16;

Capture filled_capture(float softcap = 0) {
  Geometry g;
  g.model = "test";
  g.n_layers = 1;
  g.n_heads = 2;
  g.n_kv_heads = 1;
  g.head_dim = 16;
  g.softmax_scale = 0.25F;
  g.score_softcap = softcap;
  g.sliding_window.assign(1, 0);
  CaptureSize size{.samples = 1, .length = 8, .rows = 8};
  size.contexts = 2;
  size.context_length = kLength;
  size.context_queries = 20;
  size.first_query = kFirstCorrectedQuery;
  Capture capture(g, size);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(16);
  for (int sequence = 1; sequence < 3; ++sequence) {
    for (int token = 0; token < kLength; ++token) {
      for (int head = 0; head < 2; ++head) {
        for (float& x : values) x = normal(random);
        capture.store_query(sequence, token, 0, head, values.data());
      }
      capture.store(sequence, token, 0, 0, Side::key, values.data());
    }
  }
  return capture;
}

CorrectedKeys stored_as(const std::string& format, Correction correction) {
  CorrectedKeys keys;
  keys.format = find_format(format);
  keys.context.head_dim = 16;
  keys.protected_tokens = 4;
  keys.correction = correction;
  return keys;
}

// Calls check(batch, query in the batch, query in the context, token) for every query of captured context c.
template <class Check>
void for_each_query(const Capture& capture, int c, const std::vector<AdapterContext>& batches,
                    const Check& check) {
  std::size_t query = 0;
  for (const AdapterContext& batch : batches) {
    for (int i = 0; i < batch.m; ++i, ++query)
      check(batch, i, static_cast<int>(query), capture.context_query_tokens(c)[query]);
  }
  EXPECT_EQ(query, capture.context_query_tokens(c).size());
}

TEST(AdapterContexts, SeeSealedKeysAsTheDesignHasIt) {
  const Capture capture = filled_capture();
  for (int c = 0; c < 2; ++c) {
    const auto batches = adapter_contexts(capture, stored_as("ch2g128", Correction::relative), c, kBatch);
    ASSERT_EQ(batches.size(), 2U);  // the batches have 16 and 4 queries
    for_each_query(capture, c, batches, [](const AdapterContext& batch, int i, int, int token) {
      int sealed = 0;  // the number of pages j with token >= 128 (j + 1) + window
      while (token >= 128 * (sealed + 1) + kAdapterWindow) ++sealed;
      EXPECT_EQ(batch.first[i], 4);
      EXPECT_EQ(batch.end[i], 128 * sealed);
      EXPECT_LT(token, batch.n);
      EXPECT_EQ(batch.scale.size(), 2U * batch.m);
    });
    for (const AdapterContext& batch : batches) {
      ASSERT_EQ(std::ssize(batch.errors), batch.end.back() * 16);
      for (int t = 0; t < batch.end.back(); ++t) {
        float largest = 0;
        for (int j = 0; j < 16; ++j) largest = std::max(largest, std::abs(batch.errors[t * 16 + j]));
        EXPECT_EQ(largest > 0, t >= 4) << t;
      }
    }
  }
}

// Compares a query's own weights, head by head, with weights from scores in double precision.
void expect_weights_of_attention(const Capture& capture, const std::vector<AdapterContext>& batches,
                                 float softcap) {
  const std::vector<float> keys = capture.context_keys(1, 0, 0);
  for (int h = 0; h < 2; ++h) {
    const std::vector<float> queries = capture.context_queries(1, 0, h);
    for_each_query(capture, 1, batches, [&](const AdapterContext& batch, int i, int query, int token) {
      std::vector<double> weights;
      double sum = 0;
      double largest = 0;
      for (int t = 0; t <= token; ++t) {
        double score = 0;
        for (int j = 0; j < 16; ++j) score += 0.25 * queries[query * 16 + j] * keys[t * 16 + j];
        if (softcap > 0) score = softcap * std::tanh(score / softcap);
        weights.push_back(std::exp(score));
        sum += weights.back();
        largest = std::max(largest, weights.back());
      }
      const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(h * batch.m + i) * batch.n;
      for (int t = 0; t < batch.n; ++t) {
        const double weight = t <= token ? weights[t] : 0;
        ASSERT_NEAR(batch.targets[row + t], weight / sum, 1e-5);
        // The tolerance covers rounding to F16, which holds the bf16 values nearly exactly.
        ASSERT_NEAR(batch.exponentials[row + t], weight / largest, 2e-3);
      }
    });
  }
}

TEST(AdapterContexts, HaveTheWeightsOfAttention) {
  const Capture capture = filled_capture();
  expect_weights_of_attention(
      capture, adapter_contexts(capture, stored_as("f16", Correction::relative), 1, kBatch), 0);
}

// A soft cap is not shift-invariant. The part of the scores that the mean's subtraction removed must
// therefore be added before the cap.
TEST(AdapterContexts, HaveUnshiftedScoresUnderASoftCap) {
  constexpr float kSoftcap = 1.5F;
  const Capture capture = filled_capture(kSoftcap);
  Constants constants;
  std::vector<float> mean(16);
  for (int j = 0; j < 16; ++j) mean[j] = 0.2F * static_cast<float>(j % 5) - 0.3F;
  constants.set(0, 0, Side::key, "mean", mean);
  CorrectedKeys keys = stored_as("f16", Correction::relative);
  const std::vector<std::string> steps{"mean"};
  keys.transform = *Transform::make(steps, 16, {&constants, 0, 0, Side::key});
  expect_weights_of_attention(capture, adapter_contexts(capture, keys, 1, kBatch), kSoftcap);
}

// In equation 5 of KVLinC, the numerator and the denominator may both be multiplied by e^M. The weights then
// stay the same.
TEST(AdapterContexts, ScaleTheAbsoluteCorrectionLikeTheExponentials) {
  const Capture capture = filled_capture();
  const auto relative = adapter_contexts(capture, stored_as("ch2g128", Correction::relative), 0, kBatch);
  const auto absolute = adapter_contexts(capture, stored_as("ch2g128", Correction::absolute), 0, kBatch);
  for (std::size_t b = 0; b < relative.size(); ++b) {
    EXPECT_EQ(relative[b].targets, absolute[b].targets);
    const int n = relative[b].n;
    for (std::size_t r = 0; r < absolute[b].scale.size(); ++r) {
      const float scale = absolute[b].scale[r];
      EXPECT_EQ(relative[b].scale[r], 1.0F);
      EXPECT_GT(scale, 0.0F);
      EXPECT_LE(scale, 1.0F);
      float largest = 0;
      for (int t = 0; t < n; ++t) largest = std::max(largest, absolute[b].exponentials[r * n + t]);
      EXPECT_TRUE(largest > 0.999F || scale == 1.0F);
    }
  }
}

}  // namespace
}  // namespace kvant
