#include "calibrate/weighing.h"

#include <gtest/gtest.h>

#include <random>

#include "model/tiny_model.h"

namespace kvant {
namespace {

Sample noise(std::uint32_t seed) {
  std::mt19937 random(seed);
  Sample sample;
  for (int i = 0; i < 200; ++i) sample.tokens.push_back(static_cast<std::int32_t>(3 + random() % 200));
  return sample;
}

TEST(Weighing, GoesOnAfterTheContextsThatAreDone) {
  const auto file = write_tiny_model(TinyModel{});
  const auto engine = Engine::load(file->path(), {.n_threads = 1});
  ASSERT_TRUE(engine.ok());
  const auto recipe = parse_recipe("k=hadamard:tcq2,v=tcq2,sink=4,budget=2.6,ladder=tcq1+tcq2+tcq4");
  ASSERT_TRUE(recipe.ok());
  const Constants nothing;
  const auto model = make_host_model((*engine)->parts(), /*n_threads=*/1);
  const auto weigh = [&](const std::vector<Sample>& contexts, const std::atomic<bool>& stop,
                         Constants& work) {
    return weigh_contexts({*model, (*engine)->geometry(), *recipe, nothing, contexts, 0, 1, &stop}, work);
  };
  const std::vector<Sample> one = {noise(1)}, two = {noise(1), noise(2)};
  const std::atomic<bool> go{false}, stop{true};
  Constants other, work;
  const auto whole = weigh(two, go, other);
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->size(), 8U);
  const auto first = weigh(one, go, work);
  ASSERT_TRUE(first.ok());
  EXPECT_NE(*first, *whole);
  EXPECT_FALSE(weigh(two, stop, work).ok());
  const auto resumed = weigh(two, go, work);
  ASSERT_TRUE(resumed.ok());
  EXPECT_EQ(*resumed, *whole);
  EXPECT_TRUE(weigh(two, stop, work).ok());  // nothing is left to be stopped
  work.for_each([](int, int, Side, const std::string& name, const auto&) {
    EXPECT_TRUE(is_weighed_context(name)) << name;
  });
}

}  // namespace
}  // namespace kvant
