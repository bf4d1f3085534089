// Tests sink logits (gpt-oss) on both backends against plain attention in double precision, which adds one
// term to each denominator.
#include <algorithm>

#include "attention/attention_fixture.h"
#include "recipe/recipe.h"

namespace kvant::sink_logits_test {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

constexpr int kTokens = 300, kDecoded = 5;

Geometry geometry_with_sinks(int window) {
  Geometry g = small_geometry(/*head_dim=*/64, /*n_heads=*/6, /*n_kv_heads=*/2, /*n_layers=*/2);
  g.sliding_window = {0, window};
  // The logits lie far below all scores, among the scores, and far above them. In the last case exp(sink -
  // max) alone would overflow.
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (const float logit : {-40.0F, -1.0F, 0.5F, 2.0F, 4.0F, 200.0F})
      g.sink_logits.push_back(logit + layer);
  }
  return g;
}

std::vector<float> row_of(int layer, int head, int kind, int token) {
  return token_values(layer, head, kind, token, 64);
}

// Returns the output [d] of a query head for one token, with K and V rounded to BF16.
std::vector<double> expected(const Geometry& g, int layer, int head, int token) {
  const int first = g.slides(layer) ? std::max(0, token + 1 - g.sliding_window[layer]) : 0;
  const std::vector<float> q = row_of(layer, head, kQueryRows, token);
  std::vector<double> scores;
  const auto rounded = [&](int kind, int t) {
    std::vector<float> row = row_of(layer, head / g.group(0), kind, t);
    for (float& x : row) x = rounded_to_bf16(x);
    return row;
  };
  for (int t = first; t <= token; ++t)
    scores.push_back(dot(q.data(), rounded(kKeyRows, t).data(), g.head_dim) * g.softmax_scale);
  scores.push_back(g.sink_logits[layer * g.n_heads + head]);
  const std::vector<double> weights = softmax_in_double(scores);
  std::vector<double> out(g.head_dim);
  for (int t = first; t <= token; ++t) {
    const std::vector<float> v = rounded(kValueRows, t);
    for (int c = 0; c < g.head_dim; ++c) out[c] += weights[t - first] * v[c];
  }
  return out;
}

class SinkLogits : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Backends, SinkLogits, ::testing::Values("reference", "cpu"));

TEST_P(SinkLogits, JoinTheDenominatorsOfTheirHeads) {
  const Geometry g = geometry_with_sinks(/*window=*/100);
  for (const char* recipe : {"bf16", "bf16,skip=1e-9"}) {
    const auto plan = resolve(parse_recipe(recipe).value(), g, nullptr).value();
    const auto backend = make_backend(GetParam()).value();
    Cache cache(plan, 0);
    const SequenceId s = cache.add();
    const auto compare = [&](const Outputs& outputs, int first, int token) {
      for (int layer = 0; layer < g.n_layers; ++layer) {
        for (int head = 0; head < g.n_heads; ++head) {
          const std::vector<double> right = expected(g, layer, head, token);
          const float* got = output_row(outputs[layer], g, first, token, head);
          for (int c = 0; c < g.head_dim; ++c)
            ASSERT_NEAR(got[c], right[c], 2e-5) << layer << " " << head << " " << token;
        }
      }
    };
    const Outputs prompt = attend_tokens(cache, s, kTokens, /*is_prompt=*/true, row_of, *backend);
    for (const int token : {0, 99, 127, 128, 299}) compare(prompt, 0, token);
    for (int t = kTokens; t < kTokens + kDecoded; ++t)
      compare(attend_tokens(cache, s, 1, /*is_prompt=*/false, row_of, *backend), t, t);
  }
}

// A sink logit of 200 takes nearly all weight, so every token's weight is below the threshold.
TEST_P(SinkLogits, CountWhereTokensAreSkipped) {
  Geometry g = geometry_with_sinks(/*window=*/0);
  std::fill(g.sink_logits.begin(), g.sink_logits.end(), 200.0F);
  const auto plan = resolve(parse_recipe("bf16,skip=1e-9").value(), g, nullptr).value();
  const auto backend = make_backend(GetParam()).value();
  Cache cache(plan, 0);
  const SequenceId s = cache.add();
  attend_tokens(cache, s, kTokens, /*is_prompt=*/true, row_of, *backend);
  attend_tokens(cache, s, 1, /*is_prompt=*/false, row_of, *backend);
  for (const SkipCount& count : backend->skip_counts()) {
    EXPECT_GT(count.seen, 0);
    EXPECT_EQ(count.skipped, count.seen);
  }
}

TEST(SinkLogitsRecipe, IsRefusedWithACorrection) {
  const Geometry g = geometry_with_sinks(0);
  const auto plan = resolve(parse_recipe("kvlinc-2bit").value(), g, nullptr);
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.error().message.find("sink logit"), std::string::npos) << plan.error().message;
}

}  // namespace
}  // namespace kvant::sink_logits_test
