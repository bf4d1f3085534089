// Compares KVLinC's linear correction with its equations 5 and 6 in double precision, with arbitrary
// adapters.
#include <gtest/gtest.h>

#include "attention/attention_fixture.h"
#include "recipe/constant_needs.h"

namespace kvant::correction_test {
namespace {

using testing::attend_tokens;
using testing::kQueryRows;
using testing::kValueRows;
using testing::plan_for;
using testing::small_geometry;

constexpr int kSize = 16;
constexpr int kHalf = 128;  // D / 2

Geometry geometry() {
  Geometry g = small_geometry(kSize, 4, 2, 1);
  g.softmax_scale = 0.25F;
  return g;
}

// Adds `shift` to all scores: channel 15 of K is the shift / softmax scale, and all queries are 1 there.
testing::RowSource shifted_values(float shift) {
  return [shift](int layer, int head, int kind, int token) {
    std::vector<float> row = testing::token_values(layer, head, kind, token, kSize);
    if (kind == kQueryRows) {
      for (float& x : row) x *= 0.3F;
    }
    if (kind != kValueRows) row[15] = kind == kQueryRows ? 1.0F : shift / 0.25F;
    return row;
  };
}

// Returns adapters that differ for every head, so the test notices a wrong adapter.
std::shared_ptr<const Constants> adapters(const Geometry& g) {
  auto constants = std::make_shared<Constants>();
  const std::size_t one = std::size_t{2} * kSize * kHalf;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (int head = 0; head < g.n_kv_heads; ++head) {
      const unsigned seed = 100 + layer * 10 + head;
      constants->set(layer, head, Side::key, "adapter/q",
                     testing::normal_values(g.group(0) * one, 0.6F, seed));
      constants->set(layer, head, Side::key, "adapter/k", testing::normal_values(one, 0.8F, seed + 50));
    }
  }
  return constants;
}

using Row = std::vector<double>;

// Computes equation 6, [softmax(x W1), softmax(x W2)]. weights: [2][d][D / 2].
Row feature_map(std::span<const float> weights, const Row& x) {
  Row features;
  for (int half = 0; half < 2; ++half) {
    Row y(kHalf, 0.0);
    for (int i = 0; i < kSize; ++i) {
      for (int j = 0; j < kHalf; ++j) y[j] += x[i] * weights[(half * kSize + i) * kHalf + j];
    }
    y = testing::softmax_in_double(y);
    features.insert(features.end(), y.begin(), y.end());
  }
  return features;
}

// Holds the tokens of one side of a head, in BF16 and as the sealed pages decode.
struct Side2 {
  std::vector<Row> exact, sealed;
};
struct Oracle {
  Side2 k, v;
  std::span<const float> q_adapter, k_adapter;
  int window = 0, sink = 0;
  bool absolute = false;

  // Returns the output of query head g of the group, with n_sealed sealed tokens. With `absolute`, follows
  // equation 5 as written. Otherwise exponentials are relative to the largest score and the correction stays
  // unscaled (Algorithm 1).
  Row attend(const std::vector<float>& query, int g, int t, int n_sealed) const {
    const Row q(query.begin(), query.end());
    const Row phi_q =
        feature_map(q_adapter.subspan(std::size_t{2} * g * kSize * kHalf, 2 * kSize * kHalf), q);
    const auto is_sealed = [&](int j) { return j < n_sealed && j >= sink; };
    Row scores(t + 1, 0.0);
    double top = -1e300;
    for (int j = 0; j <= t; ++j) {
      const Row& key = is_sealed(j) ? k.sealed[j] : k.exact[j];
      for (int c = 0; c < kSize; ++c) scores[j] += 0.25 * q[c] * key[c];
      top = std::max(top, scores[j]);
    }
    if (absolute) top = 0;
    Row out(kSize, 0.0);
    double sum = 0;
    for (int j = 0; j <= t; ++j) {
      double weight = std::exp(scores[j] - top);
      if (is_sealed(j)) {
        Row error = k.exact[j];
        for (int c = 0; c < kSize; ++c) error[c] -= k.sealed[j][c];
        const Row phi_k = feature_map(k_adapter, error);
        for (int f = 0; f < 2 * kHalf; ++f) weight += phi_q[f] * phi_k[f];
      }
      const Row& value = is_sealed(j) ? v.sealed[j] : v.exact[j];
      for (int c = 0; c < kSize; ++c) out[c] += weight * value[c];
      sum += weight;
    }
    for (double& x : out) x /= sum;
    return out;
  }
};

Side2 stored(const Plan& plan, int kv_head, Side side, int n, const testing::RowSource& source) {
  const SidePlan& what = plan.head(0, kv_head).side(side);
  std::vector<float> rows;
  for (int t = 0; t < n; ++t) {
    const auto row = source(0, kv_head, static_cast<int>(side), t);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  what.transform.forward({rows.data(), n, kSize});
  for (float& x : rows) x = testing::rounded_to_bf16(x);
  std::vector<float> sealed = rows;
  for (int page = 0; (page + 1) * kPageTokens <= n; ++page) {
    TokenMask mask;
    for (int t = 0; page == 0 && t < plan.layers[0].sink; ++t) mask.set(t);
    std::vector<std::byte> bytes(what.sealed->page_bytes(kSize));
    float* values = &sealed[page * kPageTokens * kSize];
    what.sealed->encode(values, mask, what.context, bytes.data());
    what.sealed->decode(bytes.data(), kPageTokens, what.context, values);
  }
  // V is mapped back to the model's space before summing, which gives the same result because the map is
  // linear.
  if (side == Side::value) {
    what.transform.inverse({rows.data(), n, kSize});
    what.transform.inverse({sealed.data(), n, kSize});
  }
  Side2 result;
  for (int t = 0; t < n; ++t) {
    const auto* exact = &rows[t * kSize];
    const auto* rounded = &sealed[t * kSize];
    result.exact.emplace_back(exact, exact + kSize);
    result.sealed.emplace_back(rounded, rounded + kSize);
  }
  return result;
}

struct Case {
  const char* recipe;
  // The shift is added to all scores.
  float shift;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.recipe << ", scores + " << c.shift;
}
class CorrectionOf : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Cases, CorrectionOf,
    ::testing::Values(Case{"k=ch2g128,v=hadamard:tok2g128,window=128,correction=relative", 0},
                      Case{"k=ch2g128,v=hadamard:tok2g128,window=128,correction=absolute", 0},
                      Case{"k=ch2g128,v=hadamard:tok2g128,window=128,correction=absolute", -6},
                      Case{"k=ch1g64,v=hadamard:tok1g64,correction=absolute", 3},
                      Case{"k=ch1g64,v=tok1g64,sink=4,correction=relative", -20},
                      Case{"k=ch2g128,v=tok2g128,sink=128,correction=absolute", -20}));

TEST_P(CorrectionOf, EqualsEquations5And6) {
  constexpr int kPrompt = 520, kDecoded = 6;
  const Geometry g = geometry();
  const auto source = shifted_values(GetParam().shift);
  const auto plan = plan_for(GetParam().recipe, g, adapters(g));
  Cache cache(plan, 0);
  const SequenceId s = cache.add();
  std::vector<float> out = attend_tokens(cache, s, kPrompt, true, source)[0];
  for (int i = 0; i < kDecoded; ++i) {
    const auto row = attend_tokens(cache, s, 1, false, source)[0];
    out.insert(out.end(), row.begin(), row.end());
  }
  const int window = plan->layers[0].window;
  std::vector<double> got, expected, uncorrected;
  for (int kv = 0; kv < g.n_kv_heads; ++kv) {
    const HeadConstants where{plan->constants.get(), 0, kv, Side::key};
    const Oracle oracle{stored(*plan, kv, Side::key, kPrompt + kDecoded, source),
                        stored(*plan, kv, Side::value, kPrompt + kDecoded, source),
                        where.find("adapter/q"),
                        where.find("adapter/k"),
                        window,
                        plan->layers[0].sink,
                        plan->recipe.correction == Correction::absolute};
    for (int t = 5; t < kPrompt + kDecoded; t += t < kPrompt ? 57 : 1) {
      const int sealed = std::max(0, (t - window) / kPageTokens) * kPageTokens;
      for (int h = 0; h < g.group(0); ++h) {
        const int head = kv * g.group(0) + h;
        const Row row = oracle.attend(source(0, head, kQueryRows, t), h, t, sealed);
        const float* actual = testing::output_row(out, g, 0, t, head);
        for (int c = 0; c < kSize; ++c)
          ASSERT_NEAR(actual[c], row[c], 1e-4) << "token " << t << " head " << head;
        expected.insert(expected.end(), row.begin(), row.end());
        got.insert(got.end(), actual, actual + kSize);
      }
    }
  }
  EXPECT_LT(testing::relative_error(got, expected), 2e-5);
}

const char* const kRecipe = "k=ch2g128,v=hadamard:tok2g128,window=128,correction=relative";

TEST(CorrectionState, IsRestoredByAnAbortAndCopiedByAFork) {
  const auto plan = plan_for(kRecipe, geometry(), adapters(geometry()));
  const auto source = shifted_values(0);
  for (const int first : {100, 300, 384}) {
    Cache cache(plan, 0);
    const SequenceId s = cache.add();
    attend_tokens(cache, s, first, true, source);
    const std::string before = testing::contents(cache, s);
    const std::int64_t bytes = cache.bytes(s).all();
    {
      auto step = cache.reserve({{s, 500, true}});
      const auto backend = make_reference_backend();
      testing::run_step(**step, source, *backend);
    }
    EXPECT_EQ(testing::contents(cache, s), before) << first;
    EXPECT_EQ(cache.bytes(s).all(), bytes) << first;
    const auto fork = cache.fork(s);
    ASSERT_TRUE(fork.ok());
    EXPECT_EQ(testing::contents(cache, *fork), before) << first;
    const auto of_fork = attend_tokens(cache, *fork, 400, true, source);
    EXPECT_EQ(testing::contents(cache, s), before) << first;
    EXPECT_EQ(attend_tokens(cache, s, 400, true, source), of_fork) << first;
    EXPECT_EQ(testing::contents(cache, s), testing::contents(cache, *fork)) << first;
  }
}

TEST(CorrectionState, IsCountedInTheBits) {
  const auto plan = plan_for(kRecipe, geometry(), adapters(geometry()));
  const auto plain = plan_for("k=ch2g128,v=hadamard:tok2g128,window=128", geometry());
  Cache corrected(plan, 0), uncorrected(plain, 0);
  corrected.add();
  uncorrected.add();
  attend_tokens(corrected, 0, 512, true, shifted_values(0));
  attend_tokens(uncorrected, 0, 512, true, shifted_values(0));
  // Each of 2 KV heads has S [D, d] and z [D] in F32.
  EXPECT_EQ(corrected.bytes(0).all() - uncorrected.bytes(0).all(), 2 * 256 * (kSize + 1) * 4);
  EXPECT_GT(corrected.bytes(0).bits_sealed(), uncorrected.bytes(0).bits_sealed());
}

TEST(CorrectionState, RefusesACutIntoWhatItSummedUp) {
  const auto plan = plan_for(kRecipe, geometry(), adapters(geometry()));
  const auto source = shifted_values(0);
  Cache cache(plan, 0);
  const SequenceId s = cache.add();
  // 384 tokens are sealed.
  attend_tokens(cache, s, 600, true, source);
  const std::string before = testing::contents(cache, s);
  const Status status = cache.truncate(s, 383);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("cannot truncate to 383 tokens: the correction of"),
            std::string::npos)
      << status.error().message;
  EXPECT_NE(status.error().message.find("384"), std::string::npos);
  EXPECT_EQ(testing::contents(cache, s), before);
  EXPECT_FALSE(cache.truncate(s, 601).ok());
  ASSERT_TRUE(cache.truncate(s, 384).ok());
  Cache fresh(plan, 0);
  fresh.add();
  ASSERT_TRUE(cache.truncate(s, 0).ok());
  EXPECT_EQ(testing::contents(cache, s), testing::contents(fresh, 0));
  EXPECT_EQ(attend_tokens(cache, s, 600, true, source), attend_tokens(fresh, 0, 600, true, source));
  EXPECT_EQ(testing::contents(cache, s), before);
}

TEST(CorrectionState, LeavesLayersWithASlidingWindowAlone) {
  Geometry g = small_geometry(kSize, 4, 2, 2);
  g.sliding_window = {0, 200};
  auto of_both = adapters(g);
  auto constants = std::make_shared<Constants>();
  of_both->for_each(
      [&](int layer, int head, Side side, const std::string& name, const std::vector<float>& x) {
        if (layer == 0) constants->set(layer, head, side, name, x);
      });
  Cache cache(plan_for(kRecipe, g, constants), 0);
  Cache plain(plan_for("k=ch2g128,v=hadamard:tok2g128,window=128", g), 0);
  cache.add();
  plain.add();
  const auto source = shifted_values(0);
  const auto corrected = attend_tokens(cache, 0, 600, true, source);
  const auto uncorrected = attend_tokens(plain, 0, 600, true, source);
  EXPECT_EQ(corrected[1], uncorrected[1]);
  EXPECT_NE(corrected[0], uncorrected[0]);
}

}  // namespace
}  // namespace kvant::correction_test
