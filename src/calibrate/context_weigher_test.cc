#include "calibrate/context_weigher.h"

#include <gtest/gtest.h>

#include <random>

#include "calibrate/learn_page_metrics.h"
#include "calibrate/rope_turns.h"
#include "calibrate/weighing.h"
#include "model/tiny_model.h"

namespace kvant::context_weigher_test {
namespace {

constexpr int kTokens = 300, kContexts = 3;

std::vector<Sample> contexts_of_noise() {
  std::mt19937 random(8);
  std::vector<Sample> contexts(kContexts);
  for (Sample& context : contexts)
    for (int i = 0; i < kTokens; ++i) context.tokens.push_back(static_cast<std::int32_t>(3 + random() % 200));
  return contexts;
}

// A context must give the same estimate as a separate pass in the metric of the earlier contexts.
TEST(ContextWeigher, FindsWhatPassesOfTheirOwnFind) {
  const auto file = write_tiny_model(TinyModel{});
  const auto engine = Engine::load(file->path(), {.n_threads = 1}).value();
  const Geometry& g = engine->geometry();
  const auto turns = rope_turns(engine->parts(), g, 1);
  const auto model = make_host_model(engine->parts(), /*n_threads=*/1);
  const std::vector<Sample> contexts = contexts_of_noise();
  const auto read = [&](int n, ContextObserver* observer) {
    const std::vector<Sample> first(contexts.begin(), contexts.begin() + n);
    return query_moments(*model, g, {first, /*seed=*/5, 1, [](int) {}, nullptr, observer}).value();
  };
  const std::vector<Recipe> recipes = {
      parse_recipe("k=hadamard:tcq2,v=tcq2,sink=4,encode=shaped,budget=2.6,ladder=tcq1+tcq2+tcq4").value(),
      parse_recipe("k=hadamard:tcq2,v=tcq2,sink=4,encode=shaped,budget=3.1,ladder=tcq1+tcq2+tcq4").value(),
      parse_recipe("k=hadamard:tcq2,v=tcq2,sink=4,budget=2.6,ladder=tcq1+tcq2+tcq4").value()};
  Constants nothing, work;
  int layers = 0;
  ContextWeigher weigher({recipes, g, turns, nothing, 1, work, [&] { ++layers; }});
  ASSERT_TRUE(weigher.has_work());
  read(kContexts, &weigher);
  EXPECT_EQ(layers, kContexts * g.n_layers);

  for (int c = kContextsBeforeWeighed; c < kContexts; ++c) {
    Constants known;
    learn_page_metrics({recipes.data(), 1}, g, read(c, nullptr), turns, 1, known);
    const auto expected = estimate_sensitivities(*model, g, recipes[0],
                                                 constants_except_sensitivities(recipes[0], g, known).value(),
                                                 {contexts[c].tokens, first_scored_query(kTokens),
                                                  5 + static_cast<std::uint64_t>(c), 1, [](int) {}, nullptr});
    ASSERT_TRUE(expected.ok());
    Constants alone;
    keep_weighed(recipes[0], g, c - kContextsBeforeWeighed, *expected, alone);
    int n = 0;
    alone.for_each([&](int layer, int head, Side side, const std::string& name, const auto& values) {
      const auto found = work.find(layer, head, side, name);
      EXPECT_TRUE(std::equal(values.begin(), values.end(), found.begin(), found.end())) << name;
      ++n;
    });
    EXPECT_EQ(n, 2 * g.n_all_kv_heads());
  }

  // Another weigher must find no work left. The recipe without a metric is not its work.
  EXPECT_FALSE(ContextWeigher({{&recipes[2], 1}, g, turns, nothing, 1, work, [] {}}).has_work());
  ContextWeigher again({recipes, g, turns, nothing, 1, work, [] {}});
  ASSERT_TRUE(again.begin(1, {}).ok());  // without moments, there is no metric
}

}  // namespace
}  // namespace kvant::context_weigher_test
