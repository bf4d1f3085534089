#include "bench/ggml_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/geometry.h"
#include "bench/attention_oracle.h"

namespace kvant::ggml_attention_test {
namespace {

constexpr AttentionHeads kShape{6, 2, 64};

// Returns values that F16 and q4_0 store exactly: multiples of 1/8 from -1 to 7/8. Each block of 32 channels
// contains a -1, so q4_0's scale is 1/8. q8_0 rounds the values by less than 1/250. Values of q are
// exact in q8_0, the type in which ggml multiplies.
AttentionValues exact_values() {
  std::mt19937 random(3);
  const auto drawn = [&](std::size_t n, int first, int last, float unit) {
    std::uniform_int_distribution<int> integer(first, last);
    std::vector<float> values(n);
    for (std::size_t i = 0; i < n; ++i) {
      values[i] = unit * static_cast<float>(i % 32 == 7 ? first : integer(random));
    }
    return values;
  };
  const std::size_t page = kPageTokens * kShape.n_kv_heads * kShape.head_dim;
  return {drawn(kShape.n_heads * kShape.head_dim, -127, 127, 1.0F / 32), drawn(page, -8, 7, 1.0F / 8),
          drawn(page, -8, 7, 1.0F / 8)};
}

std::vector<double> row_of(const std::vector<float>& values, int row) {
  const float* first = values.data() + static_cast<std::ptrdiff_t>(row) * kShape.head_dim;
  return {first, first + kShape.head_dim};
}

std::vector<double> expected_output(const AttentionValues& values, int context) {
  std::vector<double> outputs;
  for (int head = 0; head < kShape.n_heads; ++head) {
    const int kv_head = head / (kShape.n_heads / kShape.n_kv_heads);
    testing::Rows k, v;
    for (int t = 0; t < context; ++t) {
      const int row = t % kPageTokens * kShape.n_kv_heads + kv_head;
      k.push_back(row_of(values.k, row));
      v.push_back(row_of(values.v, row));
    }
    const auto output = testing::attention_in_double(row_of(values.q, head), k, v);
    outputs.insert(outputs.end(), output.begin(), output.end());
  }
  return outputs;
}

TEST(GgmlAttention, AttendsToEveryTokenOfEveryCacheWithBothGraphs) {
  const AttentionValues values = exact_values();
  for (const GgmlCache& cache : kGgmlCaches) {
    // From 512 tokens on, ggml splits the tokens of an F16 cache.
    for (const int context : {1, 200, 700}) {
      auto made = GgmlAttention::make(cache, kShape, values, context, /*n_layers=*/2, /*n_threads=*/2);
      ASSERT_TRUE(made.ok()) << made.error().message;
      ASSERT_TRUE((*made)->layer_seconds().ok());
      ASSERT_EQ((*made)->output().size(), values.q.size());
      EXPECT_LT(testing::relative_rms_error((*made)->output(), expected_output(values, context)), 4e-3)
          << cache.name << " at " << context;
    }
  }
}

const GgmlCache& cache_called(std::string_view name) {
  return *std::find_if(std::begin(kGgmlCaches), std::end(kGgmlCaches),
                       [&](const GgmlCache& cache) { return name == cache.name; });
}

TEST(GgmlAttention, CountsBytesAndBits) {
  // A block of 32 values has a scale of 2 bytes, and 32 or 16 bytes of codes.
  EXPECT_EQ(ggml_layer_bytes(cache_called("f16"), kShape, 100), 2 * 100 * 128 * 2);
  EXPECT_EQ(ggml_layer_bytes(cache_called("q8_0"), kShape, 100), 2 * 100 * 4 * 34);
  EXPECT_EQ(ggml_layer_bytes(cache_called("q4_0"), kShape, 100), 2 * 100 * 4 * 18);
  EXPECT_EQ(ggml_layer_bytes(cache_called("q4_0-f16-plain"), kShape, 100), 100 * 4 * (18 + 64));
  for (const auto& [name, bits] : {std::pair{"q4_0", 4.5}, {"q8_0-f16-plain", 12.25}, {"f16-plain", 16.0}}) {
    auto made = GgmlAttention::make(cache_called(name), kShape, exact_values(), 100, 3, 1);
    ASSERT_TRUE(made.ok());
    EXPECT_EQ((*made)->bits(), bits);
    EXPECT_EQ((*made)->n_layers(), 3);
  }
}

TEST(GgmlAttention, StoresWhatItsBlocksDivide) {
  EXPECT_TRUE(ggml_stores(cache_called("f16"), 80));
  EXPECT_FALSE(ggml_stores(cache_called("q8_0"), 80));
  EXPECT_FALSE(ggml_stores(cache_called("q4_0-f16-plain"), 80));
  EXPECT_FALSE(ggml_stores(cache_called("q4_0"), 8));
  EXPECT_TRUE(ggml_stores(cache_called("q4_0"), 96));
}

}  // namespace
}  // namespace kvant::ggml_attention_test
