// Compares prompts of every product recipe on the CPU backend and on the reference with attention in double
// precision. The oracle shares no attention code with either. The rule of visibility says what each query
// sees, and the formats' own encode and decode say what is stored. The cache says which tokens VQuant
// protects (protection_test.cc checks the choice).
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "attention/attention_fixture.h"
#include "format/page_metric.h"
#include "recipe/constant_needs.h"
#include "recipe/recipe_fixture.h"

namespace kvant::prompt_oracle_test {
namespace {

using testing::attend_tokens;
using testing::kKeyRows;
using testing::kQueryRows;
using testing::kValueRows;
using testing::Outputs;
using testing::plan_for;

constexpr int kSize = 64, kTokens = 520;
constexpr int kChunks[] = {250, 270};

Geometry geometry() {
  Geometry g = testing::small_geometry(kSize, 4, 2, 2);
  g.sliding_window = {0, 150};
  return g;
}

std::vector<float> row_of(int layer, int head, int kind, int token) {
  // Rows take time to make, so each is made once.
  static std::map<std::tuple<int, int, int, int>, std::vector<float>> rows;
  std::vector<float>& row = rows[{layer, head, kind, token}];
  if (row.empty()) {
    row = testing::token_values(layer, head, kind, token, kSize);
    for (float& x : row) x *= kind == kQueryRows ? 0.3F : 1.0F;
  }
  return row;
}

using Row = std::vector<double>;

// Computes phi(x) = [softmax(x W1), softmax(x W2)] (KVLinC equation 6).
Row features_of(std::span<const float> weights, const Row& x) {
  constexpr int kHalf = kAdapterFeatures / 2;
  Row all;
  for (int half = 0; half < 2; ++half) {
    Row y(kHalf, 0.0);
    for (int i = 0; i < kSize; ++i) {
      for (int j = 0; j < kHalf; ++j) y[j] += x[i] * weights[(half * kSize + i) * kHalf + j];
    }
    for (const double p : testing::softmax_in_double(y)) all.push_back(p);
  }
  return all;
}

// Holds the tokens of one (layer, KV head) as the cache keeps them.
class Head {
 public:
  Head(const Cache& cache, SequenceId s, int layer, int kv_head)
      : plan_(cache.plan()), head_(plan_.head(layer, kv_head)), rules_(plan_.layers[layer]) {
    std::vector<PageView> pages;
    head_of(cache, s, layer, kv_head).list_pages(0, pages);
    for (const PageView& page : pages) {
      if (!page.is_protected) left_out_[page.first_token / kPageTokens] = page.masked;
    }
    for (const Side side : kSides) store(layer, kv_head, side);
    if (head_.corrected) sum_up();
  }

  // Returns the output of the query of token t, which is in the block that begins at block_start. group_head
  // counts the KV head's query heads.
  Row attend(const std::vector<float>& q, int t, int block_start, int group_head) const {
    Row scores;
    const int sliding = rules_.sliding_window;
    for (int j = 0; j <= t; ++j) {
      const Row& k = (is_sealed(j, block_start) ? sealed_ : exact_)[0][j];
      double score = 0;
      for (int c = 0; c < kSize; ++c) score += q[c] * k[c];
      scores.push_back(sliding > 0 && j <= t - sliding ? -INFINITY : score * plan_.geometry.softmax_scale);
    }
    const double top = *std::max_element(scores.begin(), scores.end());
    Row out(kSize, 0.0);
    double sum = 0;
    for (int j = 0; j <= t; ++j) {
      const double weight = std::exp(scores[j] - top);
      const Row& v = (is_sealed(j, block_start) ? sealed_ : exact_)[1][j];
      sum += weight;
      for (int c = 0; c < kSize; ++c) out[c] += weight * v[c];
    }
    if (head_.corrected) correct(q, block_start, group_head, out, sum);
    for (double& x : out) x /= sum;
    return out;
  }

 private:
  bool is_left_out(int token) const {
    const auto page = left_out_.find(token / kPageTokens);
    return token < rules_.sink || (page != left_out_.end() && page->second.test(token % kPageTokens));
  }
  // Returns whether the queries of a block see a page sealed. They do if the block starts at token
  // 128 (page + 1) + window or later.
  bool is_due(int page, int block_start) const {
    return block_start >= kPageTokens * (page + 1) + rules_.window;
  }
  bool is_sealed(int token, int block_start) const {
    return is_due(token / kPageTokens, block_start) && !is_left_out(token);
  }

  std::vector<Row> in_model_space(const SidePlan& side, std::vector<float> rows) const {
    side.transform.inverse({rows.data(), kTokens, kSize});
    std::vector<Row> all;
    all.reserve(kTokens);
    for (int t = 0; t < kTokens; ++t)
      all.emplace_back(rows.begin() + std::ptrdiff_t{t} * kSize,
                       rows.begin() + std::ptrdiff_t{t + 1} * kSize);
    return all;
  }

  void store(int layer, int kv_head, Side which) {
    const SidePlan& side = head_.side(which);
    std::vector<float> rows;
    for (int t = 0; t < kTokens; ++t) {
      const auto row = row_of(layer, kv_head, which == Side::key ? kKeyRows : kValueRows, t);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    side.transform.forward({rows.data(), kTokens, kSize});
    const PageContext tail{kSize, side.context.constants};
    std::vector<std::byte> bytes(plan_.tail->page_bytes(kSize));
    for (int t = 0; t < kTokens; ++t) {
      plan_.tail->encode_rows(&rows[t * kSize], 0, 1, tail, bytes.data());
      plan_.tail->decode(bytes.data(), 1, tail, &rows[t * kSize]);
    }
    std::vector<float> sealed = rows;
    bytes.resize(side.sealed->page_bytes(kSize));
    for (int page = 0; (page + 1) * kPageTokens <= kTokens; ++page) {
      TokenMask mask;
      for (int t = 0; t < kPageTokens; ++t) {
        if (is_left_out(page * kPageTokens + t)) mask.set(t);
      }
      float* values = &sealed[page * kPageTokens * kSize];
      encode_page(*side.sealed, side.transform, side.context, page * kPageTokens, mask, values, bytes.data());
      side.sealed->decode(bytes.data(), kPageTokens, side.context, values);
    }
    const int s = static_cast<int>(which);
    if (which == Side::key) {
      for (std::size_t i = 0; i < rows.size(); ++i) key_errors_.push_back(double{rows[i]} - sealed[i]);
    }
    exact_[s] = in_model_space(side, std::move(rows));
    sealed_[s] = in_model_space(side, std::move(sealed));
  }

  // Computes for each page S = sum phi_k(e)^T v and, in the last column, z = sum phi_k(e) (KVLinC equation
  // 5).
  void sum_up() {
    const auto adapter = head_.k.context.constants.find(kKeyAdapter);
    for (int page = 0; (page + 1) * kPageTokens <= kTokens; ++page) {
      sums_.emplace_back(kAdapterFeatures, Row(kSize + 1, 0.0));
      for (int t = page * kPageTokens; t < (page + 1) * kPageTokens; ++t) {
        if (is_left_out(t)) continue;
        const auto error = key_errors_.begin() + std::ptrdiff_t{t} * kSize;
        const Row phi = features_of(adapter, Row(error, error + kSize));
        for (int f = 0; f < kAdapterFeatures; ++f) {
          for (int c = 0; c < kSize; ++c) sums_.back()[f][c] += phi[f] * sealed_[1][t][c];
          sums_.back()[f][kSize] += phi[f];
        }
      }
    }
  }

  void correct(const std::vector<float>& q, int block_start, int group_head, Row& out, double& sum) const {
    std::vector<float> query = q;
    head_.k.transform.query({query.data(), 1, kSize}, nullptr);
    constexpr std::size_t kWeights = std::size_t{kSize} * kAdapterFeatures;
    const Row phi =
        features_of(head_.k.context.constants.find(kQueryAdapter).subspan(group_head * kWeights, kWeights),
                    Row(query.begin(), query.end()));
    for (std::size_t page = 0; page < sums_.size(); ++page) {
      if (!is_due(static_cast<int>(page), block_start)) continue;
      for (int f = 0; f < kAdapterFeatures; ++f) {
        for (int c = 0; c < kSize; ++c) out[c] += phi[f] * sums_[page][f][c];
        sum += phi[f] * sums_[page][f][kSize];
      }
    }
  }

  const Plan& plan_;
  const HeadPlan& head_;
  const LayerPlan& rules_;
  std::map<int, TokenMask> left_out_;      // by page: protected tokens
  std::vector<Row> exact_[2], sealed_[2];  // by side and token, in the model's space
  Row key_errors_;                         // [kTokens, d], in the space of stored values
  std::vector<std::vector<Row>> sums_;     // by page: [features][d + 1]
};

// Returns the relative error that a recipe may have. `exact` is the bound for products of numbers that are
// not rounded to 8 bits, without SAS.
double allowed_error(const Recipe& recipe, double exact) {
  if (recipe.products == Products::integer) return 0.03;  // q and P are rounded to 8 bits.
  return recipe.softmax == Softmax::exact ? exact : 0.002;
}

class PromptOfRecipe : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Recipes, PromptOfRecipe, ::testing::ValuesIn(testing::product_recipes()));

void expect_attention_in_double(const std::string& recipe, AttentionBackend& backend, double exact) {
  const Geometry g = geometry();
  Cache cache(plan_for(recipe, g, nullptr, backend.page_order()), 0);
  const SequenceId s = cache.add();
  Outputs outputs(g.n_layers);
  for (const int n : kChunks) {
    const Outputs more = attend_tokens(cache, s, n, true, row_of, backend);
    for (int layer = 0; layer < g.n_layers; ++layer)
      outputs[layer].insert(outputs[layer].end(), more[layer].begin(), more[layer].end());
  }
  ASSERT_EQ(cache.plan().recipe.prefill, kPageTokens) << "the oracle's blocks";
  for (int layer = 0; layer < g.n_layers; ++layer) {
    std::vector<double> got, right;
    for (int kv = 0; kv < g.n_kv_heads; ++kv) {
      const Head head(cache, s, layer, kv);
      for (int t = 0; t < kTokens; t += t % kPageTokens == 127 ? 1 : 21 + t % 2) {
        for (int i = 0; i < g.group(0); ++i) {
          const int h = kv * g.group(0) + i;
          const Row row = head.attend(row_of(layer, h, kQueryRows, t), t, t / kPageTokens * kPageTokens, i);
          right.insert(right.end(), row.begin(), row.end());
          const float* out = testing::output_row(outputs[layer], g, 0, t, h);
          got.insert(got.end(), out, out + kSize);
        }
      }
    }
    EXPECT_LT(testing::relative_error(got, right), allowed_error(cache.plan().recipe, exact))
        << "layer " << layer;
  }
}

TEST_P(PromptOfRecipe, IsAttentionInDoublePrecisionOnTheCpu) {
  expect_attention_in_double(GetParam(), *make_cpu_backend(),
                             3e-4);  // q and P have 16 bits (cpu_backend_test.cc).
}

TEST_P(PromptOfRecipe, IsAttentionInDoublePrecisionOnTheReference) {
  expect_attention_in_double(GetParam(), *make_reference_backend(), 2e-5);
}

}  // namespace
}  // namespace kvant::prompt_oracle_test
