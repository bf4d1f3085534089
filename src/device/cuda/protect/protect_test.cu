// Compares the weights of tokens with their definition in double precision. The tests also check that rows
// are copied to protected pages.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <tuple>

#include "base/float16.h"
#include "device/cuda/common/limits.h"
#include "device/cuda/page/page_layout.h"
#include "device/cuda/test/device_memory.h"
#include "device/cuda/test/row_numbers.h"
#include "kvant/kvant.h"

namespace kvant::cuda::protect_test {
namespace {

bool have_gpu() {
  int n = 0;
  return cudaGetDeviceCount(&n) == cudaSuccess && n > 0;
}

std::vector<float> bf16_numbers(std::size_t n, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> numbers(n);
  for (float& x : numbers) x = float_from_bf16(bf16_from_float(normal(random)));
  return numbers;
}

std::vector<std::uint16_t> as_bf16(const std::vector<float>& numbers) {
  std::vector<std::uint16_t> out(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) out[i] = bf16_from_float(numbers[i]);
  return out;
}

// Holds the queries of a sequence's last tokens, the keys of the sequence, and the expected weights. Query i
// belongs to token kTokens - kQueries + i.
struct Observation {
  static constexpr int kTokens = 300, kQueries = 19, kKvHeads = 3;
  int d, group;
  float softcap;
  std::vector<float> q, keys;   // [kQueries][kKvHeads * group][d] and [kTokens][kKvHeads][d]
  std::vector<float> lse;       // [kQueries][kKvHeads * group]
  std::vector<double> weights;  // [kKvHeads][kTokens]

  Observation(int head_dim, int heads, float cap) : d(head_dim), group(heads), softcap(cap) {
    std::mt19937 random(5);
    q = bf16_numbers(std::size_t{1} * kQueries * kKvHeads * group * d, random);
    keys = bf16_numbers(std::size_t{1} * kTokens * kKvHeads * d, random);
    weights.resize(std::size_t{1} * kKvHeads * kTokens);
    for (int i = 0; i < kQueries; ++i) {
      for (int h = 0; h < kKvHeads * group; ++h) {
        const int n_seen = kTokens - kQueries + i + 1;
        double sum = 0;
        for (int t = 0; t < n_seen; ++t) sum += std::exp(score(i, h, t));
        lse.push_back(static_cast<float>(std::log(sum)));
        for (int t = 0; t < n_seen; ++t) weights[h / group * kTokens + t] += std::exp(score(i, h, t)) / sum;
      }
    }
  }
  float scale() const { return 1 / std::sqrt(static_cast<float>(d)); }
  double score(int query, int head, int token) const {
    const float* a = q.data() + (std::ptrdiff_t{query} * kKvHeads * group + head) * d;
    const float* b = keys.data() + (std::ptrdiff_t{token} * kKvHeads + head / group) * d;
    double sum = 0;
    for (int c = 0; c < d; ++c) sum += double{a[c]} * b[c];
    sum *= scale();
    return softcap > 0 ? softcap * std::tanh(sum / softcap) : sum;
  }
};

class TokenWeights : public ::testing::TestWithParam<std::tuple<int, int, float, kvant_type>> {
 protected:
  static constexpr int kTokens = Observation::kTokens, kQueries = Observation::kQueries,
                       kKvHeads = Observation::kKvHeads;

  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << "no GPU";
    const auto& [d, group, softcap, type] = GetParam();
    expected_ = std::make_unique<Observation>(d, group, softcap);
    n_heads_ = kKvHeads * group;
    q_ = std::make_unique<DeviceArray<std::uint8_t>>(as_bytes(expected_->q, type));
    keys_ = std::make_unique<DeviceArray<std::uint16_t>>(as_bf16(expected_->keys));
    lse_ = std::make_unique<DeviceArray<float>>(expected_->lse);
    weights_ = std::make_unique<DeviceArray<float>>(std::vector<float>(kKvHeads * kTokens));
  }

  // Returns the arguments of a call for queries [first_query, end_query) and keys [first_key, end_key).
  kvant_token_weights weights_of(int first_query, int end_query, int first_key, int end_key) const {
    const int d = expected_->d;
    const std::int64_t q_stride = std::int64_t{n_heads_} * d, key_stride = std::int64_t{kKvHeads} * d;
    const std::int64_t q_at = first_query * q_stride;
    kvant_token_weights w{};
    w.struct_size = sizeof w;
    w.n_queries = end_query - first_query;
    w.n_tokens = end_key - first_key;
    w.n_visible = kTokens - kQueries + first_query + 1 - first_key;
    w.q_type = std::get<3>(GetParam());
    w.q = q_->get() + q_at * (w.q_type == KVANT_F32 ? 4 : 2);
    w.q_token_stride = q_stride;
    w.q_head_stride = d;
    w.lse = lse_->get() + first_query * n_heads_;
    w.lse_token_stride = n_heads_;
    w.lse_head_stride = 1;
    w.keys = keys_->get() + first_key * key_stride;
    w.key_token_stride = key_stride;
    w.key_head_stride = d;
    w.weights = weights_->get() + first_key;
    w.weight_head_stride = kTokens;
    return w;
  }
  void weigh(const kvant_token_weights& w) const {
    kvant_decode_shape shape{};
    shape.struct_size = sizeof shape;
    shape.n_kv_heads = kKvHeads;
    shape.group = expected_->group;
    shape.head_dim = expected_->d;
    shape.softmax_scale = expected_->scale();
    shape.score_softcap = expected_->softcap;
    ASSERT_EQ(kvant_weigh_tokens(&shape, &w, nullptr), KVANT_OK) << kvant_last_error();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  void expect_weights() const {
    const std::vector<float> found = weights_->read();
    for (std::size_t i = 0; i < found.size(); ++i)
      ASSERT_NEAR(found[i], expected_->weights[i], 1e-5 + 2e-4 * expected_->weights[i]) << i;
  }

  std::unique_ptr<Observation> expected_;
  int n_heads_ = 0;
  std::unique_ptr<DeviceArray<float>> lse_, weights_;
  std::unique_ptr<DeviceArray<std::uint8_t>> q_;
  std::unique_ptr<DeviceArray<std::uint16_t>> keys_;
};

// The first 7 queries are weighed before the other queries, and keys come in parts of various lengths.
TEST_P(TokenWeights, AreThoseOfTheDefinitionInAnyParts) {
  for (const auto& [first_query, end_query] : {std::pair{0, 7}, {7, kQueries}}) {
    for (const auto& [first_key, end_key] : {std::pair{0, 128}, {128, 256}, {256, 290}, {290, kTokens}})
      weigh(weights_of(first_query, end_query, first_key, end_key));
  }
  expect_weights();
}

TEST_P(TokenWeights, FindTheLogSumExpsOfTheirQueries) {
  const DeviceArray<float> found(std::vector<float>(expected_->lse.size(), NAN));
  for (const auto& [first_query, end_query] : {std::pair{0, 7}, {7, kQueries}}) {
    kvant_token_weights w = weights_of(first_query, end_query, 0, kTokens);
    w.lse = nullptr;
    w.found_lse = found.get() + first_query * n_heads_;
    weigh(w);
  }
  expect_weights();
  const std::vector<float> lse = found.read();
  for (std::size_t i = 0; i < lse.size(); ++i) ASSERT_NEAR(lse[i], expected_->lse[i], 1e-4) << i;
}

// The first two queries attend to no token.
TEST_P(TokenWeights, OfQueriesThatSeeNothingAreNone) {
  const DeviceArray<float> found(std::vector<float>(4 * n_heads_, NAN));
  kvant_token_weights w = weights_of(0, 4, 0, 40);
  w.n_visible = -1;
  w.found_lse = found.get();
  weigh(w);
  const std::vector<float> lse = found.read(), weights = weights_->read();
  for (int i = 0; i < 4 * n_heads_; ++i) EXPECT_EQ(lse[i] == -INFINITY, i < 2 * n_heads_) << i;
  for (int head = 0; head < kKvHeads; ++head) {
    const float* of_head = weights.data() + head * kTokens;
    EXPECT_NEAR(of_head[0] + of_head[1], 2.0F * expected_->group, 1e-3F);
    EXPECT_GT(of_head[1], 0);
    EXPECT_EQ(of_head[2], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, TokenWeights,
                         ::testing::Combine(::testing::Values(64, 128, 256), ::testing::Values(1, 3, 16),
                                            ::testing::Values(0.0F, 2.0F),
                                            ::testing::Values(KVANT_BF16, KVANT_F32, KVANT_F16)));

class Protection : public ::testing::TestWithParam<int> {};

// The pages [head][side][page] belong to two sequences, and rows of the second sequence are copied.
TEST_P(Protection, CopiesRowsOfTheTail) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  const int d = GetParam();
  constexpr int kHeads = 2, kPages = 2, kSeqs = 2, kRows = 5;
  const std::size_t page = std::size_t{kPageTokens} * d;
  std::vector<std::uint16_t> tail(kSeqs * kHeads * 2 * kPages * page);
  for (std::size_t i = 0; i < tail.size(); ++i) tail[i] = static_cast<std::uint16_t>(i * 7919 % 65521);
  std::vector<std::uint16_t> expected(tail.size(), 0xffff);
  const std::vector<std::int32_t> seq(kRows, 1), head{0, 1, 1, 0, 1}, from{3, 200, 17, 255, 128},
      to{0, 0, 130, 129, 1};
  const auto at = [&](int s, int h, int side, int token, int channel) {
    return (((std::size_t{1} * s * kHeads + h) * 2 + side) * kPages + token / kPageTokens) * page +
           plain_index(static_cast<PageSide>(side), d, token % kPageTokens, channel);
  };
  for (int i = 0; i < kRows; ++i) {
    for (int side = 0; side < 2; ++side) {
      for (int c = 0; c < d; ++c)
        expected[at(seq[i], head[i], side, to[i], c)] = tail[at(seq[i], head[i], side, from[i], c)];
    }
  }
  std::vector<std::int32_t> table(kSeqs * kHeads * 2 * kPages);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i);
  const DeviceArray<std::int32_t> ids(table), seqs(seq), heads(head), tokens(from), places(to);
  const DeviceArray<std::uint16_t> from_pages(tail),
      to_pages(std::vector<std::uint16_t>(tail.size(), 0xffff));
  kvant_decode_shape shape{};
  shape.struct_size = sizeof shape;
  shape.head_dim = d;
  kvant_decode_layer layer{};
  layer.struct_size = sizeof layer;
  layer.tail = {ids.get(),
                kHeads * 2 * kPages,
                0,
                2 * kPages,
                kPages,
                from_pages.get(),
                static_cast<std::int64_t>(2 * page)};
  layer.protected_pages = layer.tail;
  layer.protected_pages.pool = to_pages.get();
  const kvant_protected_rows rows{sizeof rows, kRows, 0, seqs.get(), heads.get(), tokens.get(), places.get()};
  ASSERT_EQ(kvant_protect(&shape, &layer, &rows, nullptr), KVANT_OK) << kvant_last_error();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(to_pages.read(), expected);
}

INSTANTIATE_TEST_SUITE_P(HeadDims, Protection, ::testing::Values(64, 128, 256));

TEST(ProtectionRefusals, NameTheArgument) {
  alignas(16) static std::int32_t some[64]{};
  kvant_decode_shape shape{};
  shape.struct_size = sizeof shape;
  shape.n_kv_heads = shape.group = 1;
  shape.head_dim = 64;
  kvant_token_weights weights{};
  weights.struct_size = sizeof weights;
  const auto refuses_weights = [&](const char* named) {
    EXPECT_EQ(kvant_weigh_tokens(&shape, &weights, nullptr), KVANT_INVALID_ARGUMENT);
    EXPECT_NE(std::string(kvant_last_error()).find(named), std::string::npos) << kvant_last_error();
  };
  refuses_weights("n_queries and n_tokens");
  weights.n_queries = weights.n_tokens = 1;
  refuses_weights("is null");
  weights.q = weights.keys = some;
  weights.weights = reinterpret_cast<float*>(some);
  refuses_weights("found_lse");
  weights.lse = weights.weights;
  weights.key_token_stride = 4;
  refuses_weights("multiples of 8");
  weights.key_token_stride = 64;
  weights.keys = reinterpret_cast<char*>(some) + 2;
  refuses_weights("16-byte aligned");
  shape.group = 17;
  refuses_weights("shape.group");

  kvant_decode_layer layer{};
  layer.struct_size = sizeof layer;
  kvant_protected_rows rows{sizeof rows, 1, 0, some, some, some, nullptr};
  const auto refuses_rows = [&](const char* named) {
    EXPECT_EQ(kvant_protect(&shape, &layer, &rows, nullptr), KVANT_INVALID_ARGUMENT);
    EXPECT_NE(std::string(kvant_last_error()).find(named), std::string::npos) << kvant_last_error();
  };
  refuses_rows("protected_token is null");
  rows.protected_token = some;
  refuses_rows("layer.tail");
  layer.tail.table = some;
  layer.tail.pool = some;
  refuses_rows("layer.protected_pages");
}

}  // namespace
}  // namespace kvant::cuda::protect_test
