// Compares dequantized pages with the values that formats decode from the pages' bytes on the host. Merged
// attention outputs and transformed rows are compared with double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "device/cuda/common/limits.h"
#include "device/cuda/test/device_memory.h"
#include "device/cuda/test/page_test_cache.h"
#include "device/cuda/test/row_numbers.h"
#include "device/cuda/test/walsh_hadamard.h"
#include "kvant/kvant.h"

namespace kvant::cuda::prefill_test {
namespace {

constexpr int kKvHeads = PageTestCache::kKvHeads;
using FormatPair = PageTestCache::Formats;

float rounded_to_bf16(float x) {
  return float_from_bf16(bf16_from_float(x));
}

bool have_gpu() {
  int n = 0;
  return cudaGetDeviceCount(&n) == cudaSuccess && n > 0;
}

// Returns whether a BF16 number is `exact` after rounding. BF16 rounds by up to 2^-8, and sums and products
// of the formats' F32 arithmetic may be fused.
bool is_rounded(std::uint16_t bf16, float exact) {
  return std::fabs(float_from_bf16(bf16) - exact) <= 0x1.01p-8 * std::fabs(exact) + 2e-5;
}

class Dequantization : public ::testing::TestWithParam<std::tuple<FormatPair, int>> {
 protected:
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << "no GPU";
  }
};

// Checks pages [first, first + n) of all sequences.
void expect_dequantizes(const PageTestCache& cache, std::size_t n_seqs, int d, int first, int n) {
  for (int side = 0; side < 2; ++side) {
    const std::vector<std::uint16_t> out = cache.dequantized(side, first, n);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const int channel = static_cast<int>(i % d);
      const int head = static_cast<int>(i / d % kKvHeads);
      const int token = static_cast<int>(i / d / kKvHeads % (n * kPageTokens)) + first * kPageTokens;
      const std::size_t seq = i / d / kKvHeads / (n * kPageTokens);
      ASSERT_LT(seq, n_seqs);
      const bool right = token < cache.tokens(seq)
                             ? is_rounded(out[i], cache.row(seq, head, side, token)[channel])
                             : out[i] == 0xffff;
      wrong += right ? 0 : 1;
    }
    EXPECT_EQ(wrong, 0U) << "side " << side << ", of " << out.size();
  }
}

TEST_P(Dequantization, GivesTheRowsThatTheFormatDecodes) {
  const auto& [pair, d] = GetParam();
  const PageTestCache cache({pair}, d, {{2, 0}, {3, 37}}, 0, false);
  expect_dequantizes(cache, 2, d, 0, 5);
}

TEST_P(Dequantization, TakesSinkAndProtectedTokensFromTheirPages) {
  const auto& [pair, d] = GetParam();
  const PageTestCache cache({pair}, d, {{7, 140}, {1, 0}, {0, 3}}, 5, true);
  expect_dequantizes(cache, 3, d, 0, 4);
  expect_dequantizes(cache, 3, d, 3, 6);
}

// Describes rows in a form other than the stored one.
struct WantedRows {
  kvant_type type;
  // If true, rows are multiplied by the Hadamard matrix, and then channels by factors.
  bool turned;
  int channels;  // number of channels in a row; 0 means all
};

// Dequantizes a range of pages of each chosen sequence, and the rows of all ranges follow one another.
// Sequences are chosen in no order, and one of them twice.
void expect_packs(const PageTestCache& cache, int d, const WantedRows& wanted) {
  struct Range {
    int seq, first, n;
  };
  constexpr Range kRanges[] = {{2, 0, 1}, {0, 2, 6}, {3, 1, 0}, {1, 0, 1}, {0, 8, 1}};
  std::vector<std::int32_t> seqs, first_pages, page_counts, begins{0};
  for (const auto& [seq, first, n] : kRanges) {
    seqs.push_back(seq);
    first_pages.push_back(first);
    page_counts.push_back(n);
    const int n_rows = std::min(cache.tokens(seq), (first + n) * kPageTokens) - first * kPageTokens;
    begins.push_back(begins.back() + std::max(n_rows, 0));
  }
  const int channels = wanted.channels == 0 ? d : wanted.channels;
  std::vector<float> factors(static_cast<std::size_t>(kKvHeads) * d);
  for (std::size_t i = 0; i < factors.size(); ++i) factors[i] = 0.5F + static_cast<float>(i % 5);
  const DeviceArray<std::int32_t> device_seqs(seqs), device_first(first_pages), device_counts(page_counts),
      device_begins(begins);
  const DeviceArray<float> device_factors(factors);
  const std::size_t size = static_cast<std::size_t>(begins.back()) * kKvHeads * channels * 2;
  const DeviceArray<std::uint8_t> keys(std::vector<std::uint8_t>(size, 0xff)),
      values(std::vector<std::uint8_t>(size, 0xff));
  kvant_dequantization rows{};
  rows.struct_size = sizeof rows;
  rows.n_seqs = static_cast<std::int32_t>(seqs.size());
  rows.seqs = device_seqs.get();
  rows.first_pages = device_first.get();
  rows.page_counts = device_counts.get();
  rows.row_begins = device_begins.get();
  rows.n_pages = 6;
  rows.n_heads = kKvHeads;
  rows.keys = keys.get();
  rows.values = values.get();
  rows.head_stride = channels;
  rows.token_stride = std::int64_t{kKvHeads} * channels;
  rows.type = wanted.type;
  rows.channels = wanted.channels;
  if (wanted.turned) {
    rows.key_hadamard = rows.value_hadamard = 1;
    rows.value_factors = device_factors.get();
  }
  ASSERT_EQ(kvant_dequantize(&cache.shape(), &cache.lengths(), &cache.layer(), &rows, nullptr), KVANT_OK)
      << kvant_last_error();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
  const double unit = wanted.type == KVANT_F16 ? 0x1.01p-11 : 0x1.01p-8;
  for (int side = 0; side < 2; ++side) {
    const std::vector<std::uint8_t> found = (side == 0 ? keys : values).read();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < seqs.size(); ++i) {
      for (int row = begins[i]; row < begins[i + 1]; ++row) {
        for (int head = 0; head < kKvHeads; ++head) {
          const int token = first_pages[i] * kPageTokens + row - begins[i];
          const float* stored = cache.row(seqs[i], head, side, token);
          std::vector<double> expected(stored, stored + d);
          if (wanted.turned) {
            expected = rotated(expected, d);
            for (int c = 0; c < d && side == 1; ++c) expected[c] *= factors[head * d + c];
          }
          for (int c = 0; c < channels; ++c) {
            const std::size_t at = (static_cast<std::size_t>(row) * kKvHeads + head) * channels + c;
            const double error = std::fabs(number_at(found, wanted.type, at) - expected[c]);
            wrong += error <= unit * std::fabs(expected[c]) + 2e-4 ? 0 : 1;
          }
        }
      }
    }
    EXPECT_EQ(wrong, 0U) << "side " << side << ", of " << found.size() / 2;
  }
}

TEST_P(Dequantization, PacksPagesOfItsOwnOfEachSequence) {
  const auto& [pair, d] = GetParam();
  const PageTestCache cache({pair}, d, {{7, 140}, {1, 0}, {0, 3}, {4, 0}}, 5, true);
  expect_packs(cache, d, {KVANT_BF16, false, 0});
  expect_packs(cache, d, {KVANT_F16, false, d * 3 / 4});
  expect_packs(cache, d, {KVANT_BF16, true, d * 5 / 8});
  expect_packs(cache, d, {KVANT_F16, true, 0});
}

constexpr FormatPair kPairs[] = {
    {"ch4g128", "tok4g128"}, {"ch2g128", "tok2g128"}, {"tok4g128", "ch2g128"},  {"tok2g128", "ch4g128"},
    {"prog4", "prog2"},      {"prog2", "prog4"},      {"lm2", "lm3"},           {"lm3", "lm4"},
    {"lm4", "lm2"},          {"vq-d2b8", "vq-d4b8"},  {"vq-d4b8", "vq-d2b8"},   {"vq-d4b10", "vq-d8b12"},
    {"vq-d8b12", "vq-d8b8"}, {"vq-d8b8", "vq-d4b12"}, {"vq-d4b12", "vq-d4b10"}, {"tcq1", "tcq2"},
    {"tcq2", "tcq1"},        {"tcq3", "tcq4"},        {"tcq4", "tcq3"},         {"tcq5", "tcq6"},
    {"tcq6", "tcq5"},        {"fp8", "tok8g32s"},     {"ch3g64", "tok5g128"},   {"prog3", "prog5"},
    {"lm5", "nvq-d4b10"},    {"pq-d4b8", "tok1g32s"}, {"ch1g32", "prog2-paper"}};

INSTANTIATE_TEST_SUITE_P(Formats, Dequantization,
                         ::testing::Combine(::testing::ValuesIn(kPairs), ::testing::ValuesIn(kHeadDims)),
                         [](const auto& info) {
                           std::string name = std::string(std::get<0>(info.param).key) + "_" +
                                              std::get<0>(info.param).value + "_d" +
                                              std::to_string(std::get<1>(info.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(DequantizationOf, HeadsWithFormatsOfTheirOwn) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  const PageTestCache cache({{"tcq3", "lm4"}, {"ch4g128", "tok2g128"}, {"prog2", "prog4"}}, 128,
                            {{3, 9}, {1, 200}}, 4, true);
  expect_dequantizes(cache, 2, 128, 0, 4);
}

TEST(DequantizationOf, OneSequenceAndHead) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  constexpr int kDim = 64;
  const PageTestCache cache({{"ch4g128", "tok4g128"}}, kDim, {{3, 9}, {2, 200}}, 4, true);
  const std::vector<std::uint16_t> out = cache.dequantized_alone(1, 1, 2, 1, 2);
  for (std::size_t i = 0; i < out.size(); ++i)
    ASSERT_TRUE(is_rounded(out[i], cache.row(1, 2, 1, kPageTokens + static_cast<int>(i / kDim))[i % kDim]))
        << i;
}

// Holds the attention of one query row to some rows, in double precision.
struct HostPart {
  std::vector<double> out;
  double log_sum_exp = -INFINITY;
};
template <class Row>
HostPart attend(const std::vector<float>& q, int n, const Row& row) {
  HostPart part{std::vector<double>(q.size()), -INFINITY};
  std::vector<double> scores(n);
  for (int token = 0; token < n; ++token)
    for (std::size_t i = 0; i < q.size(); ++i) scores[token] += double{q[i]} * row(0, token, i) / 8;
  const double maximum = n > 0 ? *std::max_element(scores.begin(), scores.end()) : 0;
  double sum = 0;
  for (int token = 0; token < n; ++token) {
    const double weight = std::exp(scores[token] - maximum);
    sum += weight;
    for (std::size_t i = 0; i < q.size(); ++i) part.out[i] += weight * row(1, token, i);
  }
  for (double& x : part.out) x /= sum > 0 ? sum : 1;
  if (sum > 0) part.log_sum_exp = maximum + std::log(sum);
  return part;
}

// Holds an attention output in GPU memory, [rows][d], and the rows' LSE, [rows].
struct DevicePart {
  DevicePart(const std::vector<HostPart>& rows, kvant_type type) : type(type), d(rows[0].out.size()) {
    std::vector<float> numbers, sums;
    for (const HostPart& row : rows) {
      sums.push_back(static_cast<float>(row.log_sum_exp));
      for (const double x : row.out) numbers.push_back(static_cast<float>(x));
    }
    out = std::make_unique<DeviceArray<std::uint8_t>>(as_bytes(numbers, type));
    lse = std::make_unique<DeviceArray<float>>(sums);
  }
  // Describes the output as one sequence with one head, whose rows are tokens.
  kvant_partial partial() const {
    kvant_partial result{};
    result.struct_size = sizeof result;
    result.out = out->get();
    result.out_type = type;
    result.token_stride = static_cast<std::int64_t>(d);
    result.lse = lse->get();
    result.lse_token_stride = 1;
    return result;
  }
  std::vector<float> read() const {
    const std::vector<std::uint8_t> bytes = out->read();
    std::vector<float> values(bytes.size() / (type == KVANT_F32 ? 4 : 2));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = number_at(bytes, type, i);
    return values;
  }

  kvant_type type;
  std::size_t d;
  std::unique_ptr<DeviceArray<std::uint8_t>> out;
  std::unique_ptr<DeviceArray<float>> lse;
};

// A block of 20 tokens follows 3 sealed pages and a tail of 9 tokens. Attention to the prefix is computed in
// chunks of two pages and merged.
void expect_merged_equals_whole(const FormatPair& pair, int d, kvant_type into_type, kvant_type other_type,
                                double tolerance) {
  constexpr int kBlock = 20;
  constexpr int kHead = 1;
  const PageTestCache cache({pair}, d, {{3, 9}}, 4, true);
  const int prefix = cache.tokens(0);
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> queries(kBlock, std::vector<float>(d)), block[2] = {queries, queries};
  for (auto* rows : {&queries, &block[0], &block[1]})
    for (std::vector<float>& row : *rows)
      for (float& x : row) x = rounded_to_bf16(normal(random));

  std::vector<HostPart> own, whole;
  for (int t = 0; t < kBlock; ++t) {
    own.push_back(
        attend(queries[t], t + 1, [&](int side, int token, std::size_t i) { return block[side][token][i]; }));
    whole.push_back(attend(queries[t], prefix + t + 1, [&](int side, int token, std::size_t i) {
      return token < prefix ? rounded_to_bf16(cache.row(0, kHead, side, token)[i])
                            : block[side][token - prefix][i];
    }));
  }
  const DevicePart into(own, into_type);
  constexpr int kChunk = 2;  // pages
  for (int first = 0; first < 4; first += kChunk) {
    const std::vector<std::uint16_t> rows[2] = {cache.dequantized_alone(0, 0, kHead, first, kChunk),
                                                cache.dequantized_alone(1, 0, kHead, first, kChunk)};
    std::vector<HostPart> parts;
    for (int t = 0; t < kBlock; ++t)
      parts.push_back(attend(
          queries[t], std::min(kChunk * kPageTokens, prefix - first * kPageTokens),
          [&](int side, int token, std::size_t i) { return float_from_bf16(rows[side][token * d + i]); }));
    const DevicePart part(parts, other_type);
    const kvant_partial a = into.partial();
    const kvant_partial b = part.partial();
    ASSERT_EQ(kvant_merge(1, kBlock, 1, d, &a, &b, nullptr), KVANT_OK);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  const std::vector<float> out = into.read();
  const std::vector<float> lse = into.lse->read();
  double error = 0;
  double energy = 0;
  for (int t = 0; t < kBlock; ++t) {
    EXPECT_NEAR(lse[t], whole[t].log_sum_exp, 5e-3 + 1e-3 * std::fabs(whole[t].log_sum_exp));
    for (int i = 0; i < d; ++i) {
      error += std::pow(out[t * d + i] - whole[t].out[i], 2);
      energy += std::pow(whole[t].out[i], 2);
    }
  }
  std::printf("  %s + %s, d = %d: relative error %.5f\n", pair.key, pair.value, d, std::sqrt(error / energy));
  EXPECT_LE(std::sqrt(error / energy), tolerance);
}

TEST(Merging, OfPrefixAndBlockEqualsAttentionToAllTokens) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  for (const int d : kHeadDims) {
    expect_merged_equals_whole({"ch4g128", "tok4g128"}, d, KVANT_F32, KVANT_F32, 0.0005);
    expect_merged_equals_whole({"tcq3", "tcq2"}, d, KVANT_F32, KVANT_BF16, 0.004);
    expect_merged_equals_whole({"vq-d4b8", "vq-d4b8"}, d, KVANT_BF16, KVANT_BF16, 0.006);
    expect_merged_equals_whole({"vq-d4b8", "vq-d4b8"}, d, KVANT_F16, KVANT_F16, 0.0015);
  }
}

TEST(Merging, LeavesOutPartsWithoutTokens) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  const HostPart some{std::vector<double>(64, 2.0), 1.5};
  const HostPart none{std::vector<double>(64, NAN), -INFINITY};
  const DevicePart into({some, none, none}, KVANT_F32), other({none, some, none}, KVANT_BF16);
  const kvant_partial a = into.partial();
  const kvant_partial b = other.partial();
  ASSERT_EQ(kvant_merge(1, 3, 1, 64, &a, &b, nullptr), KVANT_OK);
  const std::vector<float> out = into.read();
  for (int i = 0; i < 128; ++i) EXPECT_EQ(out[i], 2.0F);
  EXPECT_EQ(into.lse->read(), (std::vector<float>{1.5, 1.5, -INFINITY}));
}

TEST(Transforming, RoundsF32RowsToBf16) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  constexpr int kRows = 3, kHeads = 2, kDim = 64;
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<std::size_t>(kRows) * kHeads * kDim);
  for (float& x : rows) x = normal(random);
  const DeviceArray<float> source(rows);
  const DeviceArray<std::uint16_t> rounded(rows.size());
  kvant_transformation t{};
  t.struct_size = sizeof t;
  t.n_rows = kRows;
  t.n_heads = kHeads;
  t.head_dim = kDim;
  t.rows = rounded.get();
  t.type = KVANT_BF16;
  t.row_stride = t.source_row_stride = kHeads * kDim;
  t.head_stride = t.source_head_stride = kDim;
  t.source = source.get();
  t.source_is_f32 = 1;
  ASSERT_EQ(kvant_transform(&t, nullptr), KVANT_OK);
  const std::vector<std::uint16_t> there = rounded.read();
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(there[i], bf16_from_float(rows[i]));
}

// Queries are multiplied by factors and by the Hadamard matrix, to match keys that were appended in this way.
// For outputs, the Hadamard matrix and inverse factors must restore the rows.
TEST(Transforming, MatchesWhatAppendingDoesToKeysAndValues) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  constexpr int kHeads = 4;
  constexpr int kOfFactors = 2;
  for (const int d : kHeadDims) {
    constexpr int kRows = 5;
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    std::vector<float> rows(static_cast<std::size_t>(kRows) * kHeads * d), factors(kHeads / kOfFactors * d);
    for (float& x : rows) x = normal(random);
    for (float& x : factors) x = std::exp(normal(random));
    std::vector<float> inverse(factors);
    for (float& x : inverse) x = 1 / x;
    const DeviceArray<float> device_rows(rows), device_factors(factors), device_inverse(inverse);
    kvant_transformation t{};
    t.struct_size = sizeof t;
    t.n_rows = kRows;
    t.n_heads = kHeads;
    t.head_dim = d;
    t.rows = device_rows.get();
    t.type = KVANT_F32;
    t.row_stride = kHeads * d;
    t.head_stride = d;
    t.factors = device_factors.get();
    t.heads_of_factors = kOfFactors;
    t.hadamard = 1;
    ASSERT_EQ(kvant_transform(&t, nullptr), KVANT_OK);
    const std::vector<float> there = device_rows.read();
    std::vector<double> scaled(rows.begin(), rows.end());
    for (std::size_t i = 0; i < rows.size(); ++i)
      scaled[i] *= factors[i / d % kHeads / kOfFactors * d + i % d];
    const std::vector<double> expected = rotated(scaled, d);
    double worst = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) worst = std::max(worst, std::fabs(there[i] - expected[i]));
    EXPECT_LT(worst, 1e-4);
    t.factors = nullptr;
    t.factors_after = device_inverse.get();
    ASSERT_EQ(kvant_transform(&t, nullptr), KVANT_OK);
    const std::vector<float> back = device_rows.read();
    for (std::size_t i = 0; i < rows.size(); ++i) ASSERT_NEAR(back[i], rows[i], 2e-4);
  }
}

// Transforming must give the same bits whether rows are transformed in place, read from another place, or
// unaligned.
TEST(Transforming, ReadsRowsFromWhereverTheyLie) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  constexpr int kRows = 7;
  constexpr int kHeads = 3;
  for (const int d : kHeadDims) {
    const int width = kHeads * d + 1;  // numbers in each unaligned row
    std::mt19937 random(4);
    std::normal_distribution<float> normal;
    std::vector<std::uint16_t> rows(static_cast<std::size_t>(kRows) * kHeads * d);
    std::vector<std::uint16_t> apart(static_cast<std::size_t>(kRows) * width);
    for (std::uint16_t& x : rows) x = bf16_from_float(normal(random));
    for (int row = 0; row < kRows; ++row)
      std::copy_n(rows.begin() + row * kHeads * d, kHeads * d, apart.begin() + row * width);
    const DeviceArray<std::uint16_t> in_place(rows), source(rows), source_apart(apart), to(rows.size()),
        to_apart(apart.size());
    kvant_transformation t{};
    t.struct_size = sizeof t;
    t.n_rows = kRows;
    t.n_heads = kHeads;
    t.head_dim = d;
    t.type = KVANT_BF16;
    t.head_stride = t.source_head_stride = d;
    t.hadamard = 1;
    const auto transform = [&](const void* from, int from_stride, std::uint16_t* into, int stride) {
      t.source = from;
      t.source_row_stride = from_stride;
      t.rows = into;
      t.row_stride = stride;
      ASSERT_EQ(kvant_transform(&t, nullptr), KVANT_OK);
    };
    transform(nullptr, 0, in_place.get(), kHeads * d);
    transform(source.get(), kHeads * d, to.get(), kHeads * d);
    transform(source_apart.get(), width, to_apart.get(), width);
    EXPECT_EQ(to.read(), in_place.read());
    EXPECT_EQ(source.read(), rows);
    const std::vector<std::uint16_t> wanted = in_place.read(), found = to_apart.read();
    for (int row = 0; row < kRows; ++row)
      EXPECT_TRUE(std::equal(found.begin() + row * width, found.begin() + row * width + kHeads * d,
                             wanted.begin() + row * kHeads * d));
  }
}

// Rotating BF16 rows to F32 must give the same bits as rotating F32 copies of the rows.
TEST(Transforming, MakesF32RowsOfBf16) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  constexpr int kRows = 5;
  for (const int d : kHeadDims) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<std::uint16_t> rows(static_cast<std::size_t>(kRows) * d);
    std::vector<float> wide(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i] = bf16_from_float(normal(random));
      wide[i] = float_from_bf16(rows[i]);
    }
    const DeviceArray<std::uint16_t> source(rows);
    const DeviceArray<float> in_place(wide), to(wide.size());
    kvant_transformation t{};
    t.struct_size = sizeof t;
    t.n_rows = kRows;
    t.n_heads = 1;
    t.head_dim = d;
    t.type = KVANT_F32;
    t.rows = in_place.get();
    t.row_stride = t.head_stride = t.source_row_stride = t.source_head_stride = d;
    for (const int hadamard : {0, 1}) {
      t.hadamard = hadamard;
      t.rows = in_place.get();
      t.source = nullptr;
      t.source_is_bf16 = 0;
      ASSERT_EQ(kvant_transform(&t, nullptr), KVANT_OK);
      t.rows = to.get();
      t.source = source.get();
      t.source_is_bf16 = 1;
      ASSERT_EQ(kvant_transform(&t, nullptr), KVANT_OK);
      EXPECT_EQ(to.read(), in_place.read());
    }
  }
}

// F16 rows with fewer channels than the head size, such as 80 or 96, become F32 rows with all channels, and
// are cut again.
TEST(Transforming, PadsRowsAndCutsThem) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU";
  constexpr int kRows = 5, kHeads = 3;
  for (const int d : kHeadDims) {
    for (const int channels : {d * 3 / 4, d * 5 / 8}) {
      std::mt19937 random(6);
      std::normal_distribution<float> normal;
      std::vector<float> rows(static_cast<std::size_t>(kRows) * kHeads * d);
      for (std::size_t i = 0; i < rows.size(); ++i)
        if (static_cast<int>(i % d) < channels) rows[i] = rounded_to(KVANT_F16, normal(random));
      const DeviceArray<std::uint8_t> source(as_bytes(first_channels(rows, d, channels), KVANT_F16));
      const DeviceArray<float> padded(std::vector<float>(rows.size(), NAN)),
          back(std::vector<float>(rows.size() / d * channels, NAN));
      kvant_transformation t{};
      t.struct_size = sizeof t;
      t.n_rows = kRows;
      t.n_heads = kHeads;
      t.head_dim = d;
      t.hadamard = 1;
      t.type = KVANT_F32;
      t.source = source.get();
      t.source_is_f16 = 1;
      t.source_channels = t.source_head_stride = channels;
      t.source_row_stride = kHeads * channels;
      t.rows = padded.get();
      t.head_stride = d;
      t.row_stride = kHeads * d;
      ASSERT_EQ(kvant_transform(&t, nullptr), KVANT_OK) << kvant_last_error();
      const std::vector<float> found = padded.read();
      const std::vector<double> expected = rotated(rows, d);
      for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-5);
      t.source = padded.get();
      t.source_is_f16 = t.source_channels = 0;
      t.source_head_stride = d;
      t.source_row_stride = kHeads * d;
      t.rows = back.get();
      t.row_channels = t.head_stride = channels;
      t.row_stride = kHeads * channels;
      ASSERT_EQ(kvant_transform(&t, nullptr), KVANT_OK) << kvant_last_error();
      const std::vector<float> again = back.read(), wanted = first_channels(rows, d, channels);
      for (std::size_t i = 0; i < again.size(); ++i) ASSERT_NEAR(again[i], wanted[i], 1e-5);
    }
  }
}

TEST(PrefillApi, RefusesWhatItCannotRun) {
  kvant_dequantization dequantization{};
  EXPECT_EQ(kvant_dequantize(nullptr, nullptr, nullptr, &dequantization, nullptr), KVANT_INVALID_ARGUMENT);
  kvant_decode_shape shape{sizeof shape, 1, 1, 1, 128, 1.0F, "no such format", "tok4g128"};
  alignas(16) const std::int32_t some = 0;
  kvant_decode_lengths lengths{};
  lengths.struct_size = sizeof lengths;
  lengths.sealed_pages = &some;
  kvant_decode_layer layer{};
  layer.struct_size = sizeof layer;
  layer.sealed.table = &some;
  layer.sealed.pool = &some;
  dequantization.struct_size = sizeof dequantization;
  dequantization.n_seqs = dequantization.n_pages = dequantization.n_heads = 1;
  EXPECT_EQ(kvant_dequantize(&shape, &lengths, &layer, &dequantization, nullptr), KVANT_UNSUPPORTED);
  // A sink needs protected pages, but there are none.
  layer.sink = 4;
  EXPECT_EQ(kvant_dequantize(&shape, &lengths, &layer, &dequantization, nullptr), KVANT_INVALID_ARGUMENT);
  layer.sink = 0;
  dequantization.head_stride = 4;
  EXPECT_EQ(kvant_dequantize(&shape, &lengths, &layer, &dequantization, nullptr), KVANT_INVALID_ARGUMENT);
  kvant_transformation transformation{};
  EXPECT_EQ(kvant_transform(&transformation, nullptr), KVANT_INVALID_ARGUMENT);
  EXPECT_EQ(kvant_merge(1, 1, 1, 128, nullptr, nullptr, nullptr), KVANT_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace kvant::cuda::prefill_test
