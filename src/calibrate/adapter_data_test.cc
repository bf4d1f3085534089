#include "calibrate/adapter_data.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kvant {
namespace {

constexpr int kLength = 420;

Capture filled_capture() {
  Geometry g;
  g.model = "test";
  g.n_layers = 1;
  g.n_heads = 2;
  g.n_kv_heads = 1;
  g.head_dim = 16;
  g.score_scale = 0.25F;
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

TEST(AdapterContexts, SeeSealedKeysAsTheDesignHasIt) {
  const Capture capture = filled_capture();
  const auto contexts = adapter_contexts(capture, stored_as("ch2g128", Correction::relative));
  ASSERT_EQ(contexts.size(), 2U);
  for (int c = 0; c < 2; ++c) {
    const AdapterContext& context = contexts[c];
    ASSERT_EQ(context.scale.size(), 40U);
    for (int i = 0; i < context.m; ++i) {
      const int token = capture.context_query_tokens(c)[i];
      int sealed = 0;  // pages j with token >= 128 (j + 1) + window
      while (token >= 128 * (sealed + 1) + kAdapterWindow) ++sealed;
      EXPECT_EQ(context.first[i], 4);
      EXPECT_EQ(context.end[i], 128 * sealed);
    }
    for (int t = 0; t < kLength; ++t) {
      float largest = 0;
      for (int j = 0; j < 16; ++j) largest = std::max(largest, std::abs(context.errors[t * 16 + j]));
      EXPECT_EQ(largest > 0, t >= 4 && t < kLength / kPageTokens * kPageTokens) << t;
    }
  }
}

TEST(AdapterContexts, HaveTheWeightsOfAttention) {
  const Capture capture = filled_capture();
  const auto context = adapter_contexts(capture, stored_as("f16", Correction::relative))[1];
  const std::vector<float> keys = capture.context_keys(1, 0, 0);
  for (int h = 0; h < 2; ++h) {
    const std::vector<float> queries = capture.context_queries(1, 0, h);
    for (int i = 0; i < context.m; ++i) {
      const int token = capture.context_query_tokens(1)[i];
      std::vector<double> weights;
      double sum = 0;
      double largest = 0;
      for (int t = 0; t <= token; ++t) {
        double score = 0;
        for (int j = 0; j < 16; ++j) score += 0.25 * queries[i * 16 + j] * keys[t * 16 + j];
        weights.push_back(std::exp(score));
        sum += weights.back();
        largest = std::max(largest, weights.back());
      }
      const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(h * context.m + i) * kLength;
      for (int t = 0; t < kLength; ++t) {
        const double weight = t <= token ? weights[t] : 0;
        ASSERT_NEAR(context.targets[row + t], weight / sum, 1e-5);
        ASSERT_NEAR(context.exponentials[row + t], weight / largest, 1e-3);  // f16 holds bf16 nearly exactly
      }
    }
  }
}

// Equation 5: the same weights once both sides are multiplied by e^M.
TEST(AdapterContexts, ScaleTheAbsoluteCorrectionLikeTheExponentials) {
  const Capture capture = filled_capture();
  const auto relative = adapter_contexts(capture, stored_as("ch2g128", Correction::relative))[0];
  const auto absolute = adapter_contexts(capture, stored_as("ch2g128", Correction::absolute))[0];
  EXPECT_EQ(relative.targets, absolute.targets);
  for (std::size_t r = 0; r < absolute.scale.size(); ++r) {
    EXPECT_EQ(relative.scale[r], 1.0F);
    EXPECT_GT(absolute.scale[r], 0.0F);
    EXPECT_LE(absolute.scale[r], 1.0F);
    float largest = 0;
    for (int t = 0; t < kLength; ++t) largest = std::max(largest, absolute.exponentials[r * kLength + t]);
    EXPECT_TRUE(largest > 0.999F || absolute.scale[r] == 1.0F);
  }
}

}  // namespace
}  // namespace kvant
