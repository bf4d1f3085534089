// Checks low-bit attention within a prompt block against the definitions in double precision: VQuant's prompt
// kernel (VQuant section 5.2, Algorithm 1) and SageAttention.
#include "attention/prompt_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "attention/graded_tokens.h"

namespace kvant::prompt_attention_test {
namespace {

using testing::attend_tokens;
using testing::kKeyRows;
using testing::kQueryRows;
using testing::kValueRows;
using testing::plan_for;
using testing::relative_error;

using Rows = std::vector<std::vector<double>>;  // One row for each token.

constexpr int kSize = 32;

// Returns keys with a mean, as models have. SageAttention gains from subtracting this mean.
std::vector<float> values_with_mean(int layer, int head, int kind, int token) {
  auto row = testing::token_values(layer, head, kind, token, kSize);
  for (int c = 0; c < kSize && kind == kKeyRows; ++c) row[c] += static_cast<float>(3 * std::sin(c + 1));
  for (float& x : row) x *= kind == kQueryRows ? 0.4F : 1.0F;
  return row;
}

Geometry geometry() {
  return testing::small_geometry(kSize, 4, 2, 1);
}

// Returns K or V of tokens [0, n) as the tail holds them.
Rows stored_rows(const testing::RowSource& source, int kv_head, int kind, int n) {
  Rows rows;
  for (int t = 0; t < n; ++t) {
    const auto row = source(0, kv_head, kind, t);
    rows.emplace_back();
    for (const float x : row) rows.back().push_back(testing::rounded_to_bf16(x));
  }
  return rows;
}

// Rounds a group of values to a uniform grid of 2^bits points from the smallest value to the largest. Scale
// and offset are f16.
void round_affine(const std::vector<double*>& group, int bits) {
  const auto f16 = [](double x) { return float_from_f16(f16_from_float(static_cast<float>(x))); };
  if (group.empty()) return;
  double low = *group[0], high = low;
  for (const double* x : group) {
    low = std::min(low, *x);
    high = std::max(high, *x);
  }
  const int top = (1 << bits) - 1;
  const double offset = f16(low), scale = f16((high - offset) / top);
  for (double* x : group) {
    *x =
        offset + scale * std::clamp(std::floor(scale == 0 ? 0 : (*x - offset) / scale + 0.5), 0.0, 1.0 * top);
  }
}

// Rounds a group of values to whole multiples of their largest magnitude / 127.
void round_symmetric(const std::vector<double*>& group) {
  double largest = 0;
  for (const double* x : group) largest = std::max(largest, std::abs(*x));
  for (double* x : group) *x = std::nearbyint(*x / largest * 127) / 127 * largest;
}

// Computes attention of one query over tokens 0 .. t.
std::vector<double> attention(const std::vector<double>& q, const Rows& k, const Rows& v, int t,
                              double scale) {
  const std::size_t d = q.size();
  std::vector<double> scores(t + 1, 0.0), out(d, 0.0);
  for (int j = 0; j <= t; ++j) {
    for (std::size_t c = 0; c < d; ++c) scores[j] += q[c] * k[j][c] * scale;
  }
  const auto weights = testing::softmax_in_double(scores);
  for (int j = 0; j <= t; ++j) {
    for (std::size_t c = 0; c < d; ++c) out[c] += weights[j] * v[j][c];
  }
  return out;
}

std::vector<double> query_row(const testing::RowSource& source, int head, int t) {
  const auto q = source(0, head, kQueryRows, t);
  return {q.begin(), q.end()};
}

// Rounds as VQuant does for queries of the page that begins at `query_page`. In tiles of 64, K is rounded by
// channel and V by token. The tokens in `exact` are not rounded. If window is not 0, tokens from
// query_page - window on are not rounded either.
void round_tiles(Rows& k, Rows& v, int block_first, int query_page, int window, int bits,
                 const std::set<int>& exact) {
  const int n = static_cast<int>(k.size());
  const int end = window == 0 ? n : std::min(n, query_page - window);
  for (int first = block_first; first < end;) {
    const int tile_end = std::min(end, (first / 64 + 1) * 64);
    for (std::size_t c = 0; c < k[0].size(); ++c) {
      std::vector<double*> channel;
      for (int t = first; t < tile_end; ++t) {
        if (!exact.contains(t)) channel.push_back(&k[t][c]);
      }
      round_affine(channel, bits);
    }
    for (int t = first; t < tile_end; ++t) {
      std::vector<double*> token;
      for (double& x : v[t]) token.push_back(&x);
      if (!exact.contains(t)) round_affine(token, bits);
    }
    first = tile_end;
  }
}

struct Outputs {
  std::vector<double> kvant, expected, plain;  // rows of the probed queries
};

// Returns kvant's outputs of a prompt of n tokens that begins at `first`, with the outputs of the definition
// and of plain attention. `define` gives the row of (query head, token).
Outputs probe(Cache& cache, const testing::RowSource& source, int first, int n,
              const std::function<std::vector<double>(int, int)>& define) {
  const Geometry& g = cache.plan().geometry;
  const auto out = attend_tokens(cache, 0, n, true, source);
  Outputs rows;
  for (int head = 0; head < g.n_heads; ++head) {
    const Rows k = stored_rows(source, head / g.group(0), kKeyRows, first + n);
    const Rows v = stored_rows(source, head / g.group(0), kValueRows, first + n);
    for (const int t : {first, first + n / 3, first + n / 2, first + n - 10, first + n - 1}) {
      const float* row = testing::output_row(out[0], g, first, t, head);
      rows.kvant.insert(rows.kvant.end(), row, row + g.head_dim);
      const auto expected = define(head, t);
      rows.expected.insert(rows.expected.end(), expected.begin(), expected.end());
      const auto plain = attention(query_row(source, head, t), k, v, t, g.softmax_scale);
      rows.plain.insert(rows.plain.end(), plain.begin(), plain.end());
    }
  }
  return rows;
}

// Expects kvant to equal the definition and to differ from plain attention. The second bound shows that
// values were rounded at all.
void expect_equal(const Outputs& rows, const std::string& recipe) {
  EXPECT_LT(relative_error(rows.kvant, rows.expected), 1e-5) << recipe;
  EXPECT_GT(relative_error(rows.kvant, rows.plain), 2e-4) << recipe;
}

class LowBitPrompt : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Bits, LowBitPrompt, ::testing::Values(8, 4));

TEST_P(LowBitPrompt, RoundsAllButSinkAndWindow) {
  const int bits = GetParam();
  for (const int window : {0, 128, 256}) {
    for (const int sink : {0, 4}) {
      const std::string recipe =
          fmt::format("k=bf16,v=bf16,prefill=all,prompt=int{},window={},sink={}", bits, window, sink);
      Cache cache(plan_for(recipe, geometry()), 0);
      cache.add();
      std::set<int> exact;
      for (int t = 0; t < sink; ++t) exact.insert(t);
      const auto rows = probe(cache, values_with_mean, 0, 600, [&](int head, int t) {
        Rows k = stored_rows(values_with_mean, head / 2, kKeyRows, 600);
        Rows v = stored_rows(values_with_mean, head / 2, kValueRows, 600);
        round_tiles(k, v, 0, t / 128 * 128, window, bits, exact);
        return attention(query_row(values_with_mean, head, t), k, v, t, geometry().softmax_scale);
      });
      expect_equal(rows, recipe);
    }
  }
}

// The vertical lines of a query come from the scores that all pages before its own page have left.
TEST_P(LowBitPrompt, LeavesVerticalLinesUnrounded) {
  namespace graded = testing::graded;
  const int bits = GetParam();
  const Geometry g = graded::geometry();
  for (const int window : {0, 128}) {
    const std::string recipe =
        fmt::format("k=bf16,v=bf16,prefill=all,prompt=int{},window={},protect=0.05", bits, window);
    Cache cache(plan_for(recipe, g), 0);
    cache.add();
    const auto define = [&](int head, int t) {
      const int query_page = t / 128 * 128;
      graded::VerticalScores scores(head / 2);
      for (int end = 128; end <= query_page; end += 128) scores.end_page(end);
      std::vector<int> order(query_page);
      std::iota(order.begin(), order.end(), 0);
      const int n_vertical = query_page / 20;
      scores.sort(order, n_vertical);
      Rows k = stored_rows(graded::values_of, head / 2, kKeyRows, 640);
      Rows v = stored_rows(graded::values_of, head / 2, kValueRows, 640);
      round_tiles(k, v, 0, query_page, window, bits, {order.begin(), order.begin() + n_vertical});
      return attention(query_row(graded::values_of, head, t), k, v, t, g.softmax_scale);
    };
    expect_equal(probe(cache, graded::values_of, 0, 640, define), recipe);
  }
}

// A block of `prefill` tokens leaves earlier tokens as they are. In a whole prompt, all tokens are unsealed
// and rounded.
TEST_P(LowBitPrompt, BeginsWithItsBlock) {
  const int bits = GetParam();
  struct Case {
    const char* prefill;
    int first, block_first;
  };
  for (const auto& [prefill, first, block_first] :
       {Case{"256", 512, 512}, {"256", 300, 256}, {"all", 300, 0}}) {
    const std::string recipe = fmt::format("k=bf16,v=bf16,prefill={},prompt=int{}", prefill, bits);
    Cache cache(plan_for(recipe, geometry()), 0);
    cache.add();
    attend_tokens(cache, 0, first, true, values_with_mean);
    const auto rows = probe(
        cache, values_with_mean, first, 200, [&, block = block_first, n = first + 200](int head, int t) {
          Rows k = stored_rows(values_with_mean, head / 2, kKeyRows, n);
          Rows v = stored_rows(values_with_mean, head / 2, kValueRows, n);
          round_tiles(k, v, block, t / 128 * 128, 0, bits, {});
          return attention(query_row(values_with_mean, head, t), k, v, t, geometry().softmax_scale);
        });
    expect_equal(rows, recipe);
  }
}

TEST_P(LowBitPrompt, WithAWindowDoesNotDependOnChunks) {
  for (const char* prefill : {"384", "all"}) {
    const auto plan =
        plan_for(fmt::format("k=ch4g128,v=tok4g128,prefill={},prompt=int{},window=128,protect=0.05", prefill,
                             GetParam()),
                 geometry());
    Cache whole(plan, 0), parts(plan, 0);
    const auto expected = attend_tokens(whole, whole.add(), 700, true, values_with_mean);
    parts.add();
    std::vector<float> out;
    for (const int n : {50, 300, 33, 317}) {
      const auto some = attend_tokens(parts, 0, n, true, values_with_mean);
      out.insert(out.end(), some[0].begin(), some[0].end());
    }
    ASSERT_EQ(out.size(), expected[0].size());
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[0][i], 1e-5);
  }
}

TEST(LowBitPrompts, LeaveDecodingExact) {
  Cache low(plan_for("k=bf16,v=bf16,prompt=int4", geometry()), 0), exact(plan_for("bf16", geometry()), 0);
  const auto a = attend_tokens(low, low.add(), 100, false, values_with_mean);
  const auto b = attend_tokens(exact, exact.add(), 100, false, values_with_mean);
  EXPECT_EQ(a, b);
}

// Computes SageAttention by its definition. K less its mean over the block is rounded to INT8 with a scale
// for each tile of 64 tokens. Queries are rounded to INT8 with a scale for each tile of 64 queries of a head.
std::vector<double> sage_by_definition(int head, int t, int first, int n) {
  Rows k = stored_rows(values_with_mean, head / 2, kKeyRows, first + n);
  const Rows v = stored_rows(values_with_mean, head / 2, kValueRows, first + n);
  std::vector<double> mean(kSize, 0.0);
  for (int j = first; j < first + n; ++j) {
    for (int c = 0; c < kSize; ++c) mean[c] += k[j][c] / n;
  }
  for (int begin = first; begin < first + n;) {
    const int end = std::min(first + n, (begin / 64 + 1) * 64);
    std::vector<double*> tile;
    for (int j = begin; j < end; ++j) {
      for (int c = 0; c < kSize; ++c) tile.push_back(&(k[j][c] -= mean[c]));
    }
    round_symmetric(tile);
    begin = end;
  }
  const int tile_first = std::max(first, t / 64 * 64), tile_end = std::min(first + n, (t / 64 + 1) * 64);
  Rows q;
  std::vector<double*> tile;
  for (int j = tile_first; j < tile_end; ++j) q.push_back(query_row(values_with_mean, head, j));
  for (auto& row : q) {
    for (double& x : row) tile.push_back(&x);
  }
  round_symmetric(tile);
  // The softmax does not change if all keys lack the mean. The mean must come back if there is an earlier
  // block.
  for (int j = first; j < first + n && first > 0; ++j) {
    for (int c = 0; c < kSize; ++c) k[j][c] += mean[c];
  }
  return attention(q[t - tile_first], k, v, t, geometry().softmax_scale);
}

TEST(SagePrompt, MultipliesIntegersAfterTheMean) {
  for (const int first : {0, 512}) {
    const std::string recipe = first == 0 ? "sage" : "sage,prefill=512";
    Cache cache(plan_for(recipe, geometry()), 0);
    cache.add();
    if (first > 0) attend_tokens(cache, 0, first, true, values_with_mean);
    const auto rows = probe(cache, values_with_mean, first, 300,
                            [&](int head, int t) { return sage_by_definition(head, t, first, 300); });
    expect_equal(rows, recipe);
  }
}

// Token 63 ends a tile with a step of 0.01. Tokens 64 and 65 begin a tile with a step of 0.02.
TEST(SagePrompt, RoundsQueriesTileByTile) {
  QueryTile tile;
  tile.first_token = 63;
  tile.n_queries = 3;
  tile.group = 1;
  tile.q = {1.27F, 0.014F, 2.54F, 0.051F, -0.029F, 0.011F};
  round_sage_queries(tile, 2);
  const std::vector<float> expected = {1.27F, 0.01F, 2.54F, 0.06F, -0.02F, 0.02F};
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(tile.q[i], expected[i], 1e-6) << i;
}

}  // namespace
}  // namespace kvant::prompt_attention_test
