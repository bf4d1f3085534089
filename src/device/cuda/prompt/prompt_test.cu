// Compares prefill attention with attention in double precision, in half precision and in 8-bit integers. The
// errors of integers are compared with the errors of two schemes in double precision: the kernel's own, and
// SageAttention's (scores in INT8, weights and values in FP8).
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <string>
#include <vector>

#include "base/sas.h"
#include "device/cuda/prompt/prompt_reference.h"
#include "device/cuda/test/captured_heads.h"
#include "device/cuda/test/device_memory.h"
#include "device/cuda/test/kernel_path.h"
#include "kvant/kvant.h"

namespace kvant::cuda::prompt_test {
namespace {

bool have_gpu() {
  int n = 0;
  return cudaGetDeviceCount(&n) == cudaSuccess && n > 0;
}

double rounded(double x, bool half) {
  if (half) return __half2float(__float2half(static_cast<float>(x)));
  return float_from_bf16(bf16_from_float(static_cast<float>(x)));
}

// Returns the tokens that are visible to a query row.
Seen seen_by(int query, int queries, int tokens, bool causal, int window) {
  if (!causal) return {0, tokens};
  const int end = std::clamp(query + 1 + tokens - queries, 0, tokens);
  return {window > 0 ? std::clamp(query + 1 + tokens - queries - window, 0, end) : 0, end};
}

struct Sequence {
  int queries, tokens;
};

// Describes a call of prefill attention and its data.
struct Case {
  std::vector<Sequence> sequences;
  int n_heads, n_kv_heads, head_dim;
  bool causal = true;
  int window = 0;
  bool half = false, sas = false;
  // Returns a number of q, K or V (side 0, 1 or 2).
  std::function<double(int side, int row, int head, int channel)> value;
  double scale = 0;  // scale of scores; 0 means 1 / sqrt(head_dim)
  bool half_products = false;
  std::vector<float> sinks;  // [n_heads], logits that count in the denominators
  // Scores are capped at this value. 0 means no cap. Caps need half_products.
  float softcap = 0;
};

struct Errors {
  double kernel, integers, sage;  // relative RMS errors over all rows that were checked
  double lse, integers_lse;       // largest differences
};

template <class T>
std::vector<std::uint16_t> bits_of(const Case& c, int side, int rows, int heads, const T& convert,
                                   std::vector<double>* numbers) {
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(rows) * heads * c.head_dim);
  numbers->resize(bits.size());
  std::size_t i = 0;
  for (int row = 0; row < rows; ++row)
    for (int head = 0; head < heads; ++head)
      for (int channel = 0; channel < c.head_dim; ++channel, ++i) {
        (*numbers)[i] = rounded(c.value(side, row, head, channel), c.half);
        bits[i] = convert((*numbers)[i]);
      }
  return bits;
}

kvant_prompt_shape shape_of(const Case& c, int n_queries, int n_tokens, double scale) {
  kvant_prompt_shape shape{};
  shape.struct_size = sizeof shape;
  shape.n_seqs = static_cast<int>(c.sequences.size());
  shape.n_heads = c.n_heads;
  shape.n_kv_heads = c.n_kv_heads;
  shape.head_dim = c.head_dim;
  shape.n_queries = n_queries;
  shape.n_tokens = n_tokens;
  shape.softmax_scale = static_cast<float>(scale);
  shape.causal = c.causal ? 1 : 0;
  shape.window = c.window;
  shape.sas = c.sas ? 1 : 0;
  shape.half = c.half ? 1 : 0;
  shape.half_products = c.half_products ? 1 : 0;
  shape.score_softcap = c.softcap;
  return shape;
}

// Holds the inputs of a case and the kernel's outputs.
struct Run {
  std::vector<std::int32_t> query_begins, token_begins;
  double scale;
  std::vector<double> q, k, v;
  std::vector<std::uint16_t> out;  // [queries, n_heads, head_dim]
  std::vector<float> lse;          // [n_heads, queries]
  // Counts the repetitions whose outputs had other bits than those of the first run.
  int others = 0;
};

Run run(const Case& c, int times = 1) {
  const int d = c.head_dim;
  Run run;
  run.query_begins = run.token_begins = {0};
  for (const Sequence& s : c.sequences) {
    run.query_begins.push_back(run.query_begins.back() + s.queries);
    run.token_begins.push_back(run.token_begins.back() + s.tokens);
  }
  const int n_queries = run.query_begins.back();
  const int n_tokens = run.token_begins.back();
  run.scale = c.scale > 0 ? c.scale : 1 / std::sqrt(static_cast<double>(d));
  const auto convert = [&](double x) {
    return c.half ? __half_as_ushort(__float2half(static_cast<float>(x)))
                  : bf16_from_float(static_cast<float>(x));
  };
  DeviceArray<std::uint16_t> q_bits(bits_of(c, 0, n_queries, c.n_heads, convert, &run.q));
  DeviceArray<std::uint16_t> k_bits(bits_of(c, 1, n_tokens, c.n_kv_heads, convert, &run.k));
  DeviceArray<std::uint16_t> v_bits(bits_of(c, 2, n_tokens, c.n_kv_heads, convert, &run.v));
  DeviceArray<std::uint16_t> out_bits(std::vector<std::uint16_t>(run.q.size(), 0xffff));
  DeviceArray<float> lse(std::vector<float>(static_cast<std::size_t>(n_queries) * c.n_heads, NAN));
  DeviceArray<std::int32_t> query_begins_there(run.query_begins), token_begins_there(run.token_begins);

  const kvant_prompt_shape shape = shape_of(c, n_queries, n_tokens, run.scale);
  std::size_t bytes = 0;
  EXPECT_EQ(kvant_prompt_workspace(&shape, &bytes), KVANT_OK) << kvant_last_error();
  DeviceArray<unsigned char> workspace(std::vector<unsigned char>(bytes, 0xff));
  kvant_prompt prompt{};
  prompt.struct_size = sizeof prompt;
  prompt.query_begins = query_begins_there.get();
  prompt.token_begins = token_begins_there.get();
  prompt.q = q_bits.get();
  prompt.k = k_bits.get();
  prompt.v = v_bits.get();
  prompt.out = out_bits.get();
  prompt.q_token_stride = prompt.out_token_stride = static_cast<std::int64_t>(c.n_heads) * d;
  prompt.k_token_stride = prompt.v_token_stride = static_cast<std::int64_t>(c.n_kv_heads) * d;
  prompt.q_head_stride = prompt.k_head_stride = prompt.v_head_stride = prompt.out_head_stride = d;
  prompt.lse = lse.get();
  prompt.lse_token_stride = 1;
  prompt.lse_head_stride = n_queries;
  const DeviceArray<float> sinks(c.sinks.empty() ? std::vector<float>(1) : c.sinks);
  if (!c.sinks.empty()) prompt.sink_logits = sinks.get();
  for (int i = 0; i < times; ++i) {
    EXPECT_EQ(kvant_prompt_attention(&shape, &prompt, workspace.get(), bytes, nullptr), KVANT_OK)
        << kvant_last_error();
    check_cuda(cudaDeviceSynchronize(), "prompt attention");
    auto out = out_bits.read();
    auto sums = lse.read();
    if (i == 0) {
      run.out = std::move(out);
      run.lse = std::move(sums);
    } else if (out != run.out || sums != run.lse) {
      ++run.others;
    }
  }
  return run;
}

// Returns the floor of SAS in half precision. The kernel of warpgroups computes weights for 128 tokens at a
// time, and the kernel of warps for 64 tokens.
WeightFloor floor_of(const Case& c) {
  if (!c.sas || !c.half_products) return {};
  const bool by_warpgroups = c.head_dim <= 128 && c.softcap == 0 && kernel_path() == "cuda/sm90/";
  return {kSasFloor, by_warpgroups ? 128 : 64};
}

// Runs the kernel and measures `rows` rows of each sequence, including the first and the last.
Errors errors_of(const Case& c, int rows) {
  const int d = c.head_dim;
  const auto [query_begins, token_begins, scale, q, k, v, out, sums, others] = run(c);
  const int n_queries = query_begins.back();
  const WeightFloor floor = floor_of(c);
  Errors errors{};
  double squares = 0;
  for (std::size_t s = 0; s < c.sequences.size(); ++s) {
    const auto [queries, tokens] = c.sequences[s];
    for (int kv_head = 0; kv_head < c.n_kv_heads; ++kv_head) {
      Matrix keys(static_cast<std::size_t>(tokens) * d), values(keys.size());
      for (int t = 0; t < tokens; ++t)
        for (int channel = 0; channel < d; ++channel) {
          const auto from =
              (static_cast<std::size_t>(token_begins[s] + t) * c.n_kv_heads + kv_head) * d + channel;
          keys[t * d + channel] = k[from];
          values[t * d + channel] = v[from];
        }
      const Matrix integer_keys = rounded_keys(keys, d);
      const Matrix integer_values = rounded_values(values, d, false);
      const Matrix sage_values = rounded_values(values, d, true);
      const int group = c.n_heads / c.n_kv_heads;
      for (int i = 0; i < std::min(rows, queries); ++i) {
        const int query =
            rows >= queries ? i : static_cast<int>(static_cast<std::int64_t>(i) * (queries - 1) / (rows - 1));
        const int head = kv_head * group + i % group;
        const auto row = static_cast<std::size_t>(query_begins[s] + query) * c.n_heads + head;
        const Seen seen = seen_by(query, queries, tokens, c.causal, c.window);
        auto exact = attend(&q[row * d], keys, values, d, scale, {seen}, Scheme::exact, c.softcap, floor);
        if (!c.sinks.empty()) {
          const double with_sink = std::log(std::exp(exact.lse) + std::exp(double{c.sinks[head]}));
          for (double& x : exact.out) x *= std::exp(exact.lse - with_sink);
          exact.lse = with_sink;
        }
        const auto integers =
            attend(&q[row * d], integer_keys, integer_values, d, scale, {seen}, Scheme::integers);
        const auto sage = attend(&q[row * d], integer_keys, sage_values, d, scale, {seen}, Scheme::sage);
        for (int channel = 0; channel < d; ++channel) {
          const std::uint16_t bits = out[row * d + channel];
          const double got = c.half ? __half2float(__ushort_as_half(bits)) : float_from_bf16(bits);
          EXPECT_TRUE(std::isfinite(got)) << "query " << query << " head " << head;
          squares += exact.out[channel] * exact.out[channel];
          errors.kernel += std::pow(got - exact.out[channel], 2);
          errors.integers += std::pow(integers.out[channel] - exact.out[channel], 2);
          errors.sage += std::pow(sage.out[channel] - exact.out[channel], 2);
        }
        const float sum = sums[static_cast<std::size_t>(head) * n_queries + query_begins[s] + query];
        if (seen.first >= seen.end) {
          EXPECT_EQ(sum, -INFINITY);
        } else {
          errors.lse = std::max(errors.lse, std::abs(sum - exact.lse));
          errors.integers_lse = std::max(errors.integers_lse, std::abs(integers.lse - exact.lse));
        }
      }
    }
  }
  errors.kernel = std::sqrt(errors.kernel / squares);
  errors.integers = std::sqrt(errors.integers / squares);
  errors.sage = std::sqrt(errors.sage / squares);
  return errors;
}

// Mixes bits with the last step of splitmix64, so neighbouring inputs give independent outputs.
std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

std::uint64_t bits_at(int side, int row, int head, int channel) {
  const std::uint64_t place = ((static_cast<std::uint64_t>(side) << 20 | row) << 8 | head) << 8 | channel;
  return mixed((place + 1) * 0x9e3779b97f4a7c15);
}

// Returns independent Gaussian numbers, which depend only on the arguments.
double gaussian(int side, int row, int head, int channel) {
  const std::uint64_t bits = bits_at(side, row, head, channel);
  const double a = (static_cast<double>(bits >> 32) + 1) / 4294967297.0;
  const double b = static_cast<double>(bits & 0xffffffff) / 4294967296.0;
  return std::sqrt(-2 * std::log(a)) * std::cos(2 * std::numbers::pi * b);
}

// Returns independent numbers in [-2, 2), faster than gaussian().
double uniform(int side, int row, int head, int channel) {
  return static_cast<double>(bits_at(side, row, head, channel) >> 32) / 1073741824.0 - 2;
}

// Returns numbers with outliers. Means of channels are far from zero. One channel of keys in 37 is twelve
// times as large, and one token of values in 200 is eight times as large.
double outliers(int side, int row, int head, int channel) {
  double x = gaussian(side, row, head, channel);
  if (side > 0) x += std::sin(1.7 * channel + side);
  if (side < 2 && channel % 37 == 5) x *= side == 0 ? 0.5 : 12;
  if (side == 2 && row % 200 == 60) x *= 8;
  return x;
}

double captured(int side, int row, int, int channel) {
  if (side == 0) return float_from_bf16(captured_query(row)[channel]);
  const int first = (side - 1) * kCapturedPages * 128 + row;
  return float_from_bf16(captured_row(first)[channel]);
}

class PromptAttention : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << "no GPU";
  }
  // Expects half precision to be accurate. A second run caps scores, for which Hopper has a different kernel.
  static void expect_accurate_in_half(Case c, int rows, const char* what) {
    c.half_products = true;
    for (const float cap : {0.0F, 20.0F}) {
      c.softcap = cap;
      const Errors errors = errors_of(c, rows);
      std::printf("%-10s d %3d  cap %2.0f  error in half precision %.5f  lse %.5f\n", what, c.head_dim, cap,
                  errors.kernel, errors.lse);
      EXPECT_LT(errors.kernel, 0.003) << what << ", cap " << cap;
      EXPECT_LT(errors.lse, 0.002) << what << ", cap " << cap;
    }
  }
  // Expects integers to be as accurate as their scheme in double precision, except for the rounding of
  // outputs and for ranges that come from samples. The kernel must also be as accurate as SageAttention's
  // scheme, whose outputs this test does not round.
  void expect_accurate(const Case& c, int rows, const char* what) const {
    expect_accurate_in_half(c, rows, what);
    if (c.head_dim > 256) return;  // Heads of 512 do not support integers.
    const Errors errors = errors_of(c, rows);
    RecordProperty("kernel", std::to_string(errors.kernel));
    std::printf("%-10s d %3d  error %.4f  integers %.4f  sage %.4f  lse %.4f  integers %.4f\n", what,
                c.head_dim, errors.kernel, errors.integers, errors.sage, errors.lse, errors.integers_lse);
    EXPECT_LT(errors.kernel, 1.2 * errors.integers + 0.005) << what;
    EXPECT_LT(errors.kernel, 1.02 * errors.sage) << what;
    EXPECT_LT(errors.lse, 1.5 * errors.integers_lse + 0.06) << what;
  }
};

TEST_P(PromptAttention, OfGaussianValuesIsAsAccurateAsItsScheme) {
  expect_accurate({{{1000, 1000}}, 4, 2, GetParam(), true, 0, false, false, gaussian}, 60, "gaussian");
}

TEST_P(PromptAttention, OfOutliersIsAsAccurateAsItsScheme) {
  expect_accurate({{{700, 700}}, 2, 1, GetParam(), true, 0, false, false, outliers}, 60, "outliers");
}

TEST_P(PromptAttention, OfCapturedValuesIsAsAccurateAsItsScheme) {
  if (GetParam() > 128) GTEST_SKIP() << "captured heads have fewer channels";
  expect_accurate({{{48, 256}}, 1, 1, GetParam(), false, 0, false, false, captured}, 48, "captured");
}

TEST_P(PromptAttention, TakesHalfPrecision) {
  expect_accurate({{{300, 300}}, 2, 2, GetParam(), true, 0, true, false, gaussian}, 40, "half");
}

TEST_P(PromptAttention, TakesSequencesOfAllLengths) {
  expect_accurate({{{1, 1}, {1, 700}, {200, 1200}, {129, 129}, {64, 64}, {193, 500}},
                   4,
                   2,
                   GetParam(),
                   true,
                   0,
                   false,
                   false,
                   gaussian},
                  24, "ragged");
}

TEST_P(PromptAttention, SeesAWindow) {
  for (const int window : {1, 100, 128, 300, 0x7fffffff})
    expect_accurate({{{500, 500}, {260, 900}}, 2, 1, GetParam(), true, window, false, false, gaussian}, 30,
                    "window");
}

TEST_P(PromptAttention, SeesAllTokensUnlessCausal) {
  expect_accurate({{{200, 333}, {100, 50}}, 2, 1, GetParam(), false, 0, false, false, gaussian}, 30, "all");
}

// Blocks have rows of several query heads, and in the last blocks some heads have no rows left.
TEST_P(PromptAttention, TakesOddNumbersOfHeads) {
  for (const int heads : {3, 5, 7})
    expect_accurate({{{300, 300}, {65, 200}, {1, 90}}, heads, 1, GetParam(), true, 0, false, false, gaussian},
                    30, "odd heads");
}

// After whole rounds of equally long blocks, too few blocks remain for all CTAs, so the last blocks are cut.
TEST_P(PromptAttention, IsAsAccurateWhereTwoCtasShareABlock) {
  expect_accurate({{{2304, 3000}}, 16, 2, GetParam(), false, 0, false, false, gaussian}, 48, "shared");
}

// A few blocks of many tiles are cut into many parts.
TEST_P(PromptAttention, IsAsAccurateWhereManyCtasShareABlock) {
  expect_accurate({{{70, 9000}, {1, 8800}}, 4, 2, GetParam(), true, 0, false, false, uniform}, 40, "parts");
}

TEST_P(PromptAttention, HasTheSameBitsWhereManyCtasShareABlock) {
  Case c{{{70, 9000}}, 4, 1, GetParam(), true, 0, false, false, uniform};
  if (c.head_dim <= 256) {
    EXPECT_EQ(run(c, 10).others, 0) << "in integers";
  }
  c.half_products = true;
  EXPECT_EQ(run(c, 10).others, 0);
}

// There are enough blocks for several warps to plan, in an order that varies. With blocks of 64, 128 and 192
// rows, some blocks remain after each CTA of an H100 has had the same number of blocks.
TEST_P(PromptAttention, HasTheSameBitsWhereTwoCtasShareABlock) {
  Case c{{{9600, 2500}}, 4, 1, GetParam(), false, 0, false, false, uniform};
  if (c.head_dim <= 256) {
    EXPECT_EQ(run(c, 10).others, 0) << "in integers";
  }
  c.half_products = true;
  for (const float cap : {0.0F, 20.0F}) {
    c.softcap = cap;
    EXPECT_EQ(run(c, 10).others, 0) << "cap " << cap;
  }
}

// There are enough blocks of several KV heads for sets of heads to take turns. The last group of sets is
// smaller.
TEST_P(PromptAttention, TakesBlocksWhoseHeadsTakeTurns) {
  if (GetParam() > 128) GTEST_SKIP() << "only heads of 64 and 128 take turns";
  Case c{{}, 15, 15, GetParam(), true, 0, false, false, uniform};
  for (int i = 0; i < 300; ++i) c.sequences.push_back({1 + i % 3, 3 + i % 20});
  const Errors errors = errors_of(c, 3);
  EXPECT_LT(errors.kernel, 1.2 * errors.integers + 0.005);
  EXPECT_LT(errors.lse, 1.5 * errors.integers_lse + 0.06);
}

TEST_P(PromptAttention, GivesZerosWhereNoTokenIsSeen) {
  expect_accurate({{{130, 50}, {70, 0}, {20, 20}}, 2, 1, GetParam(), true, 0, false, false, gaussian}, 200,
                  "unseen");
}

TEST_P(PromptAttention, TakesTheMeanWhereAllScoresAreZero) {
  const auto zeros = [](int side, int row, int head, int channel) {
    return side == 2 ? gaussian(side, row, head, channel) : 0;
  };
  expect_accurate({{{200, 200}}, 2, 1, GetParam(), true, 0, false, false, zeros}, 60, "zeros");
}

TEST_P(PromptAttention, WithSasIsAsAccurateButForItsPolynomialAndFloor) {
  if (GetParam() > 256) GTEST_SKIP() << "prompts in integers are for smaller heads";
  const Errors errors = errors_of({{{400, 400}}, 2, 1, GetParam(), true, 0, false, true, gaussian}, 60);
  EXPECT_LT(errors.kernel, 1.2 * errors.integers + 0.01);
}

// Scores of later tiles are far above all earlier scores. Sums must move to the unit of the larger scores,
// and nothing may overflow.
TEST_P(PromptAttention, FollowsScoresThatRise) {
  if (GetParam() > 256) GTEST_SKIP() << "prompts in integers are for smaller heads";
  const auto rising = [](int side, int row, int head, int channel) {
    const double x = gaussian(side, row, head, channel);
    return side == 0 ? std::abs(x) : side == 1 ? x + (row / 128 - 1) * 2.0 : x;
  };
  const Errors errors = errors_of({{{640, 640}}, 1, 1, GetParam(), true, 0, false, false, rising}, 60);
  EXPECT_LT(errors.kernel, 1.2 * errors.integers + 0.003);
  EXPECT_LT(errors.kernel, 1.3 * errors.sage);
}

// Integer queries and keys with a maximum of 127, and keys in pairs that add up to zero, lose nothing as
// INT8. A step of the products of queries and keys is a step of scores. The test can choose any size of that
// step.
TEST_P(PromptAttention, WeighsScoresWithStepsOfAnySize) {
  if (GetParam() > 256) GTEST_SKIP() << "prompts in integers are for smaller heads";
  const auto integers = [](int side, int row, int head, int channel) {
    if (side == 2) return gaussian(side, row, head, channel);
    if (side == 0)
      return channel == 0   ? 0
             : channel == 1 ? 127
                            : std::clamp(std::nearbyint(gaussian(side, row, head, channel)), -1.0, 1.0);
    const double sign = row % 2 == 0 ? 1 : -1;
    if (channel < 2) return channel == 0 ? sign * 127 : 0;
    return sign * std::clamp(std::nearbyint(gaussian(side, row / 2, head, channel)), -2.0, 2.0);
  };
  for (int exponent = -6; exponent <= 6; ++exponent) {
    Case c{{{300, 300}}, 2, 1, GetParam(), true, 0, false, false, integers};
    c.scale = std::ldexp(std::numbers::ln2, exponent);
    const Errors errors = errors_of(c, 60);
    std::printf("a step of 2^%-2d d %3d  error %.4f  integers %.4f  lse %.4f\n", exponent, c.head_dim,
                errors.kernel, errors.integers, errors.lse);
    EXPECT_LT(errors.kernel, 1.2 * errors.integers + 0.005) << exponent;
    EXPECT_LT(errors.lse, 0.15) << exponent;
  }
}

// Scores rise and fall along the tokens. Queries, weights and values have at least 11 bits, and outputs have
// the 8 bits of BF16.
TEST_P(PromptAttention, InHalfPrecisionFollowsScoresThatRiseAndFall) {
  const auto waves = [](int side, int row, int head, int channel) {
    const double x = gaussian(side, row, head, channel);
    return side == 0 ? std::abs(x) : side == 1 ? x + 3 * std::sin(row / 90.0) : x;
  };
  expect_accurate_in_half({{{900, 900}}, 2, 1, GetParam(), true, 0, false, false, waves}, 60, "waves");
}

TEST_P(PromptAttention, InHalfPrecisionTakesSinkLogits) {
  Case c{{{300, 300}, {70, 500}}, 4, 2, GetParam(), true, 100, false, false, gaussian};
  c.sinks = {-3, 0.5F, 4, 9};
  expect_accurate_in_half(c, 60, "sinks");
}

// Some scores are several times their cap, where tanh is nearly 1. Other scores lie far below the cap.
TEST_P(PromptAttention, InHalfPrecisionCapsScores) {
  for (const float cap : {2.0F, 50.0F}) {
    Case c{{{300, 300}, {70, 500}}, 4, 2, GetParam(), true, 100, false, false, gaussian};
    c.scale = 20 / std::sqrt(static_cast<double>(c.head_dim));
    c.half_products = true;
    c.softcap = cap;
    c.sinks = {-3, 0.5F, 4, 9};
    const Errors errors = errors_of(c, 60);
    std::printf("cap %2.0f d %3d  error %.5f  lse %.5f\n", cap, c.head_dim, errors.kernel, errors.lse);
    // The tolerance allows for scores of 50, which come from products of numbers with 11 bits.
    EXPECT_LT(errors.kernel, 0.01) << cap;
    EXPECT_LT(errors.lse, 0.03) << cap;
  }
}

// Returns a case of SAS in half precision. The first token's score is `first`, and other scores are Gaussian.
Case with_first_score(int head_dim, double first, int tokens) {
  const double key = first / 2 * std::sqrt(static_cast<double>(head_dim));
  const auto values = [key](int side, int row, int head, int channel) {
    if (side == 1 && (row == 0 || channel == 0)) return row == 0 && channel == 0 ? key : 0.0;
    return side == 0 && channel == 0 ? 2.0 : gaussian(side, row, head, channel);
  };
  Case c{{{tokens, tokens}}, 4, 2, head_dim, true, 0, false, true, values};
  c.half_products = true;
  return c;
}

void expect_sas_of_first_score(int head_dim, double first, int tokens, int sampled) {
  Case c = with_first_score(head_dim, first, tokens);
  for (const float cap : {0.0F, 100.0F}) {
    c.softcap = cap;
    const Errors errors = errors_of(c, sampled);
    std::printf("sas %1.0f d %3d  cap %3.0f  error %.5f  lse %.5f\n", first, head_dim, cap, errors.kernel,
                errors.lse);
    EXPECT_LT(errors.kernel, 0.006) << cap;
    EXPECT_LT(errors.lse, 0.01) << cap;
  }
}

// The first token's score is the largest in its tile. There the floor is 6 below this score, and many scores
// lie around the floor.
TEST_P(PromptAttention, InHalfPrecisionWithSasWeighsByItsPolynomialAndFloor) {
  expect_sas_of_first_score(GetParam(), 5, 300, 60);
}

// Texts begin with tokens to which most heads attend more than to any other token. After the tile of the
// first token, SAS must give other tokens the weights of exact attention, which here are a fifth of all
// weights. A floor relative to the first token's score would leave other tokens no weight.
TEST_P(PromptAttention, InHalfPrecisionWithSasLooksPastAnAttentionSink) {
  expect_sas_of_first_score(GetParam(), 9, 1500, 40);
}

TEST_P(PromptAttention, InHalfPrecisionSaturatesWhatIsBeyondIt) {
  const auto large = [](int side, int row, int head, int channel) {
    const double x = gaussian(side, row, head, channel);
    return side == 2 && channel == 3 ? 1e6 : x;
  };
  Case c{{{200, 200}}, 1, 1, GetParam(), true, 0, false, false, large};
  c.half_products = true;
  errors_of(c, 60);  // errors_of() expects all outputs to be finite
}

INSTANTIATE_TEST_SUITE_P(HeadDims, PromptAttention, ::testing::Values(64, 128, 256, 512));

TEST(PromptRefusals, NameTheArgument) {
  Case c{{{10, 10}}, 2, 1, 64, true, 0, false, false, gaussian};
  const auto refused = [&](const std::function<void(kvant_prompt_shape&)>& spoil) {
    kvant_prompt_shape shape = shape_of(c, 10, 10, 1);
    spoil(shape);
    std::size_t bytes = 0;
    EXPECT_NE(kvant_prompt_workspace(&shape, &bytes), KVANT_OK);
    return std::string(kvant_last_error());
  };
  EXPECT_NE(refused([](auto& s) { s.struct_size = 1; }).find("kvant_prompt_shape"), std::string::npos);
  EXPECT_NE(refused([](auto& s) { s.n_seqs = 0; }).find("n_seqs"), std::string::npos);
  EXPECT_NE(refused([](auto& s) { s.n_heads = 3, s.n_kv_heads = 2; }).find("n_heads"), std::string::npos);
  EXPECT_NE(refused([](auto& s) { s.head_dim = 96; }).find("head_dim"), std::string::npos);
  EXPECT_NE(refused([](auto& s) { s.softmax_scale = 0; }).find("softmax_scale"), std::string::npos);
  EXPECT_NE(refused([](auto& s) { s.causal = 0, s.window = 5; }).find("window"), std::string::npos);
  EXPECT_NE(refused([](auto& s) { s.n_tokens = 0; }).find("n_tokens"), std::string::npos);
  EXPECT_NE(refused([](auto& s) { s.n_sealed_pages = -1; }).find("n_sealed_pages"), std::string::npos);
  EXPECT_NE(refused([](auto& s) { s.half_products = 1, s.head_dim = 96; }).find("head_dim"),
            std::string::npos);
  EXPECT_NE(refused([](auto& s) { s.half_products = 1, s.score_softcap = -1; }).find("score_softcap"),
            std::string::npos);
  EXPECT_NE(refused([](auto& s) { s.score_softcap = 50; }).find("score_softcap"), std::string::npos);
  EXPECT_NE(refused([](auto& s) { s.head_dim = 512; }).find("half_products"), std::string::npos);
  kvant_prompt_shape shape = shape_of(c, 10, 10, 1);
  kvant_prompt prompt{};
  prompt.struct_size = sizeof prompt;
  EXPECT_EQ(kvant_prompt_attention(&shape, &prompt, nullptr, 0, nullptr), KVANT_INVALID_ARGUMENT);
  EXPECT_NE(std::string(kvant_last_error()).find("query_begins"), std::string::npos);
}

}  // namespace
}  // namespace kvant::cuda::prompt_test
