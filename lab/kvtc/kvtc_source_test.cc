#include "kvtc/kvtc_source.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "eval/engine_source.h"
#include "model/tiny_model.h"

namespace kvant {
namespace {

constexpr int kTokens = 500, kScored = 300;

std::vector<std::int32_t> some_tokens(int n_vocab) {
  std::mt19937 random(11);
  std::vector<std::int32_t> tokens(kTokens);
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % static_cast<unsigned>(n_vocab));
  return tokens;
}

std::array<PrincipalDirections, 2> unturned(int width) {
  PrincipalDirections directions;
  directions.mean.assign(width, 0.0F);
  directions.directions.assign(static_cast<std::size_t>(width) * width, 0.0F);
  for (int i = 0; i < width; ++i) directions.directions[static_cast<std::size_t>(i) * width + i] = 1;
  return {directions, directions};
}

class KvtcCache : public ::testing::Test {
 protected:
  // Returns the last kScored predictions. The steps do not end at page boundaries.
  std::vector<float> predictions(LogitSource& source) const {
    const int n_vocab = session_.engine().n_vocab(), first = kTokens - kScored;
    const auto tokens = some_tokens(n_vocab);
    std::vector<float> logits(static_cast<std::size_t>(kScored) * n_vocab);
    EXPECT_TRUE(source.begin().ok());
    EXPECT_TRUE(source.step(std::span(tokens).first(first), true, {}).ok());
    for (int at = first; at < kTokens; at += 75)
      EXPECT_TRUE(source
                      .step(std::span(tokens).subspan(at, 75), false,
                            {&logits[static_cast<std::size_t>(at - first) * n_vocab], 75, n_vocab})
                      .ok());
    return logits;
  }
  std::vector<float> exact() const {
    const auto plan = session_.plan(parse_recipe(kKvtcRecipe).value()).value();
    return predictions(*make_engine_source("bf16", session_.engine(), session_.backend(), plan, 512));
  }
  int width() const {
    const Geometry& g = session_.engine().geometry();
    return g.n_layers * g.n_kv_heads * g.head_dim;
  }

  std::unique_ptr<TinyFile> model_ = write_tiny_model({});
  Session session_ =
      Session::open({.model = model_->path(), .backend = "reference"}, WeightMode::as_stored, 0).value();
};

// A group of one component is just its shift in f16, so the coder loses no more than bf16 does.
TEST_F(KvtcCache, PredictsAsABf16CacheWhereNothingIsLost) {
  const auto directions = unturned(width());
  const std::vector<ComponentGroup> single(width(), {1, 2});
  const auto source = make_kvtc_source("kvtc", session_, directions, {single, single}).value();
  const std::vector<float> expected = exact(), found = predictions(*source);
  double squares = 0, errors = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    squares += double{expected[i]} * expected[i];
    errors += std::pow(double{found[i]} - expected[i], 2);
  }
  EXPECT_LT(std::sqrt(errors / squares), 0.01);
}

// A group of 0 bits stores nothing, so decoding returns zeros. Queries must read zeros in place of whole
// pages that end at least 128 tokens before the queries.
TEST_F(KvtcCache, QueriesSeeWhatDecodingGivesOfPagesBehindTheWindow) {
  const auto directions = unturned(width());
  const std::vector<ComponentGroup> nothing = {{width(), 0}};
  const auto source = make_kvtc_source("kvtc", session_, directions, {nothing, nothing}).value();
  const std::vector<float> expected = exact(), found = predictions(*source);
  const int n_vocab = session_.engine().n_vocab();
  const auto unlike = [&](int token) {
    const auto row = static_cast<std::ptrdiff_t>(token - (kTokens - kScored)) * n_vocab;
    return !std::equal(found.begin() + row, found.begin() + row + n_vocab, expected.begin() + row);
  };
  for (const int token : {200, 230, 255}) EXPECT_FALSE(unlike(token)) << token;
  for (const int token : {256, 300, 499}) EXPECT_TRUE(unlike(token)) << token;
  // At 500 tokens, 3 pages of 128 tokens are sealed, and at most 2 of these pages lie before the window. The
  // sink is exact.
  double bits = 0;
  for (int n = kTokens - 127; n <= kTokens; ++n) bits += 16.0 * (n - ((n - 128) / 128 * 128 - 4)) / n / 128;
  EXPECT_EQ(source->bits().sealed, 0);
  EXPECT_NEAR(source->bits().all, bits, 1e-9);
}

TEST_F(KvtcCache, RefusesMoreComponentsThanChannels) {
  const auto directions = unturned(width());
  const auto refused = make_kvtc_source("kvtc", session_, directions, {{{{width() + 1, 4}}, {{1, 4}}}});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("components in groups"), std::string::npos);
}

}  // namespace
}  // namespace kvant
