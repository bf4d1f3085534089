// Checks integer products and SAS (TurboAttention, Algorithms 1 to 3). A hand-worked example pins single
// values. An oracle in double precision quantizes by the paper's formulas and checks whole sequences.
#include "device/cpu/kernels/integer_products.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "attention/attention_fixture.h"

namespace kvant {
namespace {

using testing::attend_tokens;
using testing::kKeyRows;
using testing::kQueryRows;
using testing::kValueRows;
using testing::plan_for;
using testing::small_geometry;

// --- The hand-worked example: d = 8, where only channels 0 and 1 are used, and one query.
//
// Tokens 0, 1 (block 0) and 64 (block 1) of a sealed page (prog4) are visible:
//   K  block 0: [1.19 .30], [-.50 .10]: s = .01, integers [119 30], [-50 10].
//      Channel 0: si = ceil(169 / 15) = 12, zi = -50, codes 14 and 0, decoded 118 and -50.
//      Channel 1: si = ceil(20 / 15) = 2, zi = 10, exact.
//   K  block 1: [2.38 -1.00]: s = .02, integers [119 -50]: one token is exact.
//   V  block 0: [2.38 0], [0 -.44]: s = .02, integers [119 0], [0 -22]; channel 0: si = 8, zi = 0, code 15,
//      decoded 120; channel 1: si = 2, zi = -22, exact.      V  block 1: [0 1.19]: s = .01, [0 119].
// The tail (int8, universal scale .05 for K and for V):
//   Tokens 128, 129: integers [60 -20], [0 20] of K and [10 0], [0 50] of V.
// q = [1.19 -.60]: s = .01, integers [119 -60].
//
// Scores: .01 * .01 * (119 * 118 - 60 * 30) = 1.2242;  1e-4 * (-119 * 50 - 60 * 10) = -.655;
//         .01 * .02 * (119 * 119 + 60 * 50) = 3.4322;  tail: 5e-4 * (119 * 60 + 60 * 20) = 4.17, -.6.
// Sealed page, m = 3.4322: P = SAS(-2.208) = e^-2 * POLY(.208) = .1353353 * .8123139 = .1099347;
//         SAS(-4.0872) = e^-4 * POLY(.0872) = .0183156 * .9165297 = .0167868; SAS(0) = .9996. l = 1.1263216.
//         Block 0: s = .1099347 / 119, integers 119 and round(18.17) = 18; block 1: s = .0084, 119.
//         O = .1099347 / 119 * .02 * [119 * 120, -18 * 22] + .0084 * .01 * [0, 119 * 119]
//           = [.2638434, -.0073167 + 1.1895240].
// Tail, m = 4.17: what came before times e^-.7378 = .4781647; P = .9996, SAS(-4.77) = .0084817, integers 119
//         and round(1.0097) = 1. l = .5385672 + 1.0080817 = 1.5466490.
//         O = .4781647 * [.2638434, 1.1822073] + .0084 * .05 * [1190, 50] = [.6259606, .5862898].
// Output: [.4047205, .3790710].
class HandWorked : public ::testing::Test {
 protected:
  static constexpr int kSize = 8;

  HandWorked() {
    constants_.set(0, 0, Side::key, "universal-scale", {0.05F});
    constants_.set(0, 0, Side::value, "universal-scale", {0.05F});
    sealed_[0] = page("prog4", 0, {{0, {1.19F, 0.30F}}, {1, {-0.50F, 0.10F}}, {64, {2.38F, -1.00F}}});
    sealed_[1] = page("prog4", 1, {{0, {2.38F, 0}}, {1, {0, -0.44F}}, {64, {0, 1.19F}}});
    tail_[0] = page("int8", 0, {{0, {3.0F, -1.0F}}, {1, {0, 1.0F}}});
    tail_[1] = page("int8", 1, {{0, {0.5F, 0}}, {1, {0, 2.5F}}});
    query_.n_queries = query_.group = 1;
    query_.first_token = 129;
    query_.q = {1.19F, -0.60F, 0, 0, 0, 0, 0, 0};
    quantize_queries(query_, kSize);
  }

  std::vector<PageView> pages() const {
    PageView sealed{.n_tokens = kPageTokens};
    for (int t = 0; t < kPageTokens; ++t) {
      if (t > 1 && t != 64) sealed.masked.set(t);
    }
    sealed.k = {find_format("prog4"), sealed_[0].data(), &contexts_[0]};
    sealed.v = {find_format("prog4"), sealed_[1].data(), &contexts_[1]};
    PageView tail{.first_token = kPageTokens, .n_tokens = 2};
    tail.k = {find_format("int8"), tail_[0].data(), &contexts_[0]};
    tail.v = {find_format("int8"), tail_[1].data(), &contexts_[1]};
    return {sealed, tail};
  }

  std::array<float, 2> output(Softmax softmax) const {
    TileScratch scratch;
    PartialAttention partial;
    partial.reset(1, kSize);
    attend_pages(query_, pages(), {kSize, 0, 0, softmax, Products::integer}, nullptr, scratch, partial);
    return {partial.accumulator[0] / partial.sum[0], partial.accumulator[1] / partial.sum[0]};
  }

  QueryTile query_;

 private:
  struct Row {
    int token;
    std::array<float, 2> values;
  };
  std::vector<std::byte> page(const char* name, int side, const std::vector<Row>& rows) const {
    std::vector<float> values(
        kPageTokens * kSize,
        100.0F);  // Masked tokens have large values, which would show if they entered any range.
    TokenMask left_out;
    for (int t = 0; t < kPageTokens; ++t) left_out.set(t);
    for (const Row& row : rows) {
      left_out.words[row.token / 64] &= ~(std::uint64_t{1} << (row.token % 64));
      std::fill_n(&values[row.token * kSize], kSize, 0.0F);
      std::copy(row.values.begin(), row.values.end(), &values[row.token * kSize]);
    }
    const Format& format = *find_format(name);
    std::vector<std::byte> bytes(format.page_bytes(kSize));
    format.encode(values.data(), left_out, contexts_[side], bytes.data());
    return bytes;
  }

  Constants constants_;
  PageContext contexts_[2] = {{kSize, {&constants_, 0, 0, Side::key}},
                              {kSize, {&constants_, 0, 0, Side::value}}};
  std::vector<std::byte> sealed_[2], tail_[2];
};

TEST_F(HandWorked, QueriesBecomeIntegersOfAtMost119) {
  EXPECT_FLOAT_EQ(query_.q_scale[0], 0.01F);
  EXPECT_EQ(query_.q[0], 119);
  EXPECT_EQ(query_.q[1], -60);
}

TEST_F(HandWorked, ScoresAreIntegerProductsTimesTheBlocksScales) {
  TileScratch scratch;
  const AttentionRules rules{kSize, 0, 0, Softmax::sas, Products::integer};
  score_page(query_, pages()[0], rules, scratch);
  EXPECT_NEAR(scratch.scores[0], 1.2242F, 1e-5);
  EXPECT_NEAR(scratch.scores[1], -0.655F, 1e-5);
  EXPECT_NEAR(scratch.scores[64], 3.4322F, 1e-5);
  EXPECT_EQ(scratch.scores[2], -HUGE_VALF);
  score_page(query_, pages()[1], rules, scratch);
  EXPECT_NEAR(scratch.scores[0], 4.17F, 1e-5);
  EXPECT_NEAR(scratch.scores[1], -0.6F, 1e-5);
}

TEST_F(HandWorked, OutputIsThatOfAlgorithms1To3) {
  const auto [first, second] = output(Softmax::sas);
  EXPECT_NEAR(first, 0.4047205F, 2e-6);
  EXPECT_NEAR(second, 0.3790710F, 2e-6);
}

// The printed rescaling is SAS(-.7378) = POLY(.7378) = .4782045, so l = 1.5466937 and O = [.6259711,
// .5863373].
TEST_F(HandWorked, OutputAsPrintedRescalesBySas) {
  const auto [first, second] = output(Softmax::sas_paper);
  EXPECT_NEAR(first, 0.4047156F, 2e-6);
  EXPECT_NEAR(second, 0.3790905F, 2e-6);
}

// If the maximum jumps by more than 6, the printed rescaling drops all earlier mass. The true rescaling keeps
// e^-jump of the mass.
TEST_F(HandWorked, OnlyThePrintedRescalingDropsMassWhenTheMaximumJumps) {
  for (float& x : query_.q) x *= 10;  // scores 12.2, -6.6, 34.3; 41.7, -6
  const auto [true_first, true_second] = output(Softmax::sas);
  const auto [paper_first, paper_second] = output(Softmax::sas_paper);
  EXPECT_NEAR(paper_second, 0.0F, 1e-6);
  EXPECT_NEAR(true_second, 1.19 * std::exp(-7.378), 1e-5);
  EXPECT_NEAR(true_first, 0.5F, 1e-3);
  EXPECT_NEAR(paper_first, 0.5F, 1e-6);
}

// Six pages are read, and only the last token has a score of 7. The printed rescaling must drop the mass of
// all earlier pages.
TEST(SasAsPrinted, DropsEarlierMassOfAnyNumberOfPages) {
  constexpr int kTokens = 700, kSize = 16;
  const auto values = [](int, int, int kind, int token) {
    const bool last = token == kTokens - 1;
    std::vector<float> row(kSize, kind == kValueRows ? 1.0F + last : 0.0F);
    if (kind == kQueryRows || (kind == kKeyRows && last)) row[0] = kind == kQueryRows ? 1.0F : 7.0F / 0.125F;
    return row;
  };
  for (const bool paper : {true, false}) {
    Cache cache(
        plan_for(paper ? "bf16,softmax=sas-paper" : "bf16,softmax=sas", small_geometry(kSize, 1, 1, 1)), 0);
    const SequenceId s = cache.add();
    attend_tokens(cache, s, kTokens - 1, true, values);
    const float out = attend_tokens(cache, s, 1, false, values)[0][0];
    // The earlier mass comes from five pages, 640 tokens. SAS(-7) = 0 drops the other 59 tokens, which share
    // the page of the maximum.
    const double earlier = paper ? 0 : 640 * std::exp(-7.0);
    EXPECT_NEAR(out, (2 + earlier) / (1 + earlier), 1e-3) << paper;
  }
}

TEST(QuantizeQueries, LeavesTinyRowsZeroAndKeepsNumbersThatAreNone) {
  QueryTile tile;
  tile.n_queries = 2;
  tile.group = 1;
  tile.q = {1e-40F, -1e-44F, std::nanf(""), 1.0F};
  quantize_queries(tile, 2);
  EXPECT_EQ(tile.q_scale[0], 0);
  EXPECT_EQ(tile.q[0], 0);
  EXPECT_EQ(tile.q[1], 0);
  EXPECT_TRUE(std::isnan(tile.q[2]));
}

// --- The oracle computes in double precision and is written from the formulas of TurboAttention.
constexpr double kLargest = 119;

double round_half_up(double x) {
  return std::floor(x + 0.5);
}

// Replaces x by integers of at most 119 and returns their scale.
double quantize(std::vector<double>& x) {
  double largest = 0;
  for (const double v : x) largest = std::max(largest, std::abs(v));
  if (largest == 0) return 0;
  const double s = largest / kLargest;
  for (double& v : x) v = round_half_up(v / s);
  return s;
}

// Holds one side of one head: the integers [n, d] of the tail and of the sealed pages, and all scales.
struct Stored {
  std::vector<std::vector<double>> tail, sealed;  // by token
  double universal = 0;
  std::vector<double> scales;  // Scales of sealed tokens.
};

// Seals as prog does: INT8 with one scale for a block of 64 tokens, then B bits channel by channel. Sink
// tokens are left out.
void seal_block(Stored& stored, int first, int bits, int sink) {
  const int d = static_cast<int>(stored.tail[0].size());
  const int begin = std::max(first, sink), end = first + 64;
  double largest = 0;
  for (int t = begin; t < end; ++t) {
    for (const double code : stored.tail[t]) largest = std::max(largest, std::abs(code) * stored.universal);
  }
  const double s = largest / kLargest;
  for (int t = first; t < end; ++t) stored.scales[t] = s;
  for (int c = 0; c < d; ++c) {
    double low = 1e9, high = -1e9;
    for (int t = begin; t < end; ++t) {
      const double q1 = round_half_up(stored.tail[t][c] * stored.universal / s);
      low = std::min(low, q1);
      high = std::max(high, q1);
    }
    const double levels = (1 << bits) - 1;
    const double si = std::max(1.0, std::ceil((high - low) / levels));
    for (int t = begin; t < end; ++t) {
      const double q1 = round_half_up(stored.tail[t][c] * stored.universal / s);
      const double code = std::clamp(round_half_up((q1 - low) / si), 0.0, levels);
      stored.sealed[t][c] = std::clamp(code * si + low, -127.0, 127.0);
    }
  }
}

double sas(double x) {
  if (x < -6) return 0;
  const double whole = std::floor(-x), f = -x - whole;
  return std::exp(-whole) * (-0.1025 * f * f * f + 0.4626 * f * f - 0.9922 * f + 0.9996);
}

struct Oracle {
  Stored k, v;
  int window, sink;
  Softmax softmax;
  double scale;

  bool is_sealed(int token, int block_start) const {
    return token >= sink && block_start >= kPageTokens * (token / kPageTokens + 1) + window;
  }

  // block_start is the first token of the page that holds t in a prompt, and t itself in decoding.
  std::vector<double> attend(const std::vector<float>& row, int t, int block_start) const {
    std::vector<double> q(row.begin(), row.end());
    for (double& x : q) x *= scale;
    const double q_scale = quantize(q);
    const int d = static_cast<int>(q.size());
    std::vector<double> scores(t + 1);
    for (int j = 0; j <= t; ++j) {
      const bool sealed = is_sealed(j, block_start);
      const std::vector<double>& key = sealed ? k.sealed[j] : k.tail[j];
      for (int c = 0; c < d; ++c) scores[j] += q[c] * key[c];
      scores[j] *= q_scale * (sealed ? k.scales[j] : k.universal);
    }
    return mix(scores, block_start);
  }

 private:
  // SAS is relative to the running maximum of the pages, and the rescaling between pages uses the true
  // exponential. Pages come in the order sealed, protected, unsealed. P has one scale for each block of 64
  // tokens of a page.
  std::vector<double> mix(const std::vector<double>& scores, int block_start) const {
    const int n = static_cast<int>(scores.size()), d = static_cast<int>(v.tail[0].size());
    std::vector<std::vector<int>> pages;
    std::vector<int> protected_set, last;
    for (int first = 0; first < n; first += kPageTokens) {
      std::vector<int> page;
      for (int j = first; j < std::min(n, first + kPageTokens); ++j) {
        const bool of_sealed_page = block_start >= first + kPageTokens + window;
        (of_sealed_page && j < sink ? protected_set : page).push_back(j);
      }
      pages.push_back(page);
    }
    const int protected_at = protected_set.empty() ? -1 : (block_start - window) / kPageTokens;
    if (!protected_set.empty()) pages.insert(pages.begin() + protected_at, protected_set);
    std::vector<double> out(d, 0.0);
    double max = -1e300, sum = 0;
    for (int i_page = 0; i_page < static_cast<int>(pages.size()); ++i_page) {
      const std::vector<int>& page = pages[i_page];
      double top = max;
      for (const int j : page) top = std::max(top, scores[j]);
      for (double& x : out) x *= std::exp(max - top);
      sum *= std::exp(max - top);
      max = top;
      for (int block = 0; block < 2; ++block) {
        std::vector<int> tokens;
        std::vector<double> p;
        for (const int j : page) {
          if (i_page == protected_at ? block == 1 : j % kPageTokens / 64 != block) continue;
          tokens.push_back(j);
          p.push_back(softmax == Softmax::exact ? std::exp(scores[j] - max) : sas(scores[j] - max));
          sum += p.back();
        }
        const double p_scale = quantize(p);
        for (std::size_t i = 0; i < tokens.size(); ++i) {
          const int j = tokens[i];
          const bool sealed = is_sealed(j, block_start);
          const std::vector<double>& value = sealed ? v.sealed[j] : v.tail[j];
          for (int c = 0; c < d; ++c) {
            out[c] += p_scale * (sealed ? v.scales[j] : v.universal) * p[i] * value[c];
          }
        }
      }
    }
    for (double& x : out) x /= sum;
    return out;
  }
};

Stored store(const Plan& plan, int kv_head, Side side, int n_tokens, int bits) {
  const int d = plan.geometry.head_dim;
  Stored stored;
  const SidePlan& what = plan.head(0, kv_head).side(side);
  stored.universal = what.context.constants.find("universal-scale")[0];
  for (int t = 0; t < n_tokens; ++t) {
    const auto row = testing::token_values(0, kv_head, static_cast<int>(side), t, d);
    std::vector<double> codes(d);
    for (int c = 0; c < d; ++c) {
      codes[c] = std::clamp(round_half_up(row[c] / stored.universal), -kLargest, kLargest);
    }
    stored.tail.push_back(codes);
  }
  stored.sealed = stored.tail;
  stored.scales.resize(n_tokens);
  for (int first = 0; first + 64 <= n_tokens; first += 64) {
    seal_block(stored, first, bits, plan.layers[0].sink);
  }
  return stored;
}

struct Case {
  const char* recipe;
  int k_bits, v_bits;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.recipe;
}

class IntegerAttention : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Recipes, IntegerAttention,
    ::testing::Values(Case{"k=prog4,v=prog4,tail=int8,products=integer", 4, 4},
                      Case{"k=prog4,v=prog2,tail=int8,products=integer,softmax=sas", 4, 2},
                      Case{"k=prog5,v=prog3,tail=int8,products=integer,softmax=sas,sink=4,window=128", 5,
                           3}));

std::vector<float> values_of(int layer, int head, int kind, int token) {
  std::vector<float> row = testing::token_values(layer, head, kind, token, 64);
  for (float& x : row) x *= kind == kQueryRows ? 0.5F : 1.0F;
  return row;
}

TEST_P(IntegerAttention, EqualsTheOracleInPrefillAndDecode) {
  constexpr int kPrompt = 290, kDecoded = 90;  // The prompt ends in its third page.
  const Geometry g = small_geometry(64, 2, 1, 1);
  auto constants = std::make_shared<Constants>();
  constants->set(0, 0, Side::key, "universal-scale",
                 {0.08F});  // The largest storable value is 119 * 0.08 = 9.52, so some outliers saturate.
  constants->set(0, 0, Side::value, "universal-scale", {0.08F});
  const auto plan = plan_for(GetParam().recipe, g, constants);
  Cache cache(plan, 0);
  const SequenceId s = cache.add();
  std::vector<float> out = attend_tokens(cache, s, kPrompt, true, values_of)[0];
  for (int i = 0; i < kDecoded; ++i) {
    const auto row = attend_tokens(cache, s, 1, false, values_of)[0];
    out.insert(out.end(), row.begin(), row.end());
  }
  const int n = kPrompt + kDecoded;
  const Oracle oracle{store(*plan, 0, Side::key, n, GetParam().k_bits),
                      store(*plan, 0, Side::value, n, GetParam().v_bits),
                      plan->layers[0].window,
                      plan->layers[0].sink,
                      plan->recipe.softmax,
                      g.softmax_scale};
  std::vector<double> got, expected;
  for (int t = 0; t < n; t += t < kPrompt ? 13 : 7) {
    const int block_start = t < kPrompt ? t / kPageTokens * kPageTokens : t;
    for (int h = 0; h < g.n_heads; ++h) {
      const auto row = oracle.attend(values_of(0, h, kQueryRows, t), t, block_start);
      expected.insert(expected.end(), row.begin(), row.end());
      const float* actual = testing::output_row(out, g, 0, t, h);
      got.insert(got.end(), actual, actual + g.head_dim);
      // F32 may round a half to the other side, and the integer then differs by one. The output differs by
      // one unit of P times V.
      for (int c = 0; c < g.head_dim; ++c) ASSERT_NEAR(*(got.end() - 64 + c), row[c], 0.09) << t << " " << h;
    }
  }
  EXPECT_LT(testing::relative_error(got, expected), 5e-4);
}

}  // namespace
}  // namespace kvant
