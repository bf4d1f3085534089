#include "model/finite_logits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cache/cache_fixture.h"
#include "model/engine.h"
#include "model/tiny_model.h"

namespace kvant {
namespace {

TEST(FiniteLogits, AreToldFromOthersWhereverTheyAre) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const int n : {1, 15, 16, 1000}) {
    std::vector<float> logits(n, -3.4e38F);
    EXPECT_TRUE(are_finite(logits)) << n;
    for (const float other : {kInfinity, -kInfinity, std::nanf(""), -std::nanf("")}) {
      for (const int at : {0, n / 2, n - 1}) {
        std::vector<float> damaged = logits;
        damaged[at] = other;
        EXPECT_FALSE(are_finite(damaged)) << n << " " << at;
      }
    }
  }
}

TEST(FiniteLogits, OfADamagedModelAreAnErrorThatNamesIt) {
  for (const char* tensor : {"", "output_norm.weight", "blk.0.ffn_down.weight"}) {
    TinyModel model;
    model.damaged = tensor;
    const auto file = write_tiny_model(model);
    const auto engine = Engine::load(file->path(), {.n_threads = 1}).value();
    const auto backend = make_cpu_backend();
    Cache cache(testing::plan_for("bf16", engine->geometry(), nullptr, backend->page_order()), 64 << 20);
    const std::vector<std::int32_t> tokens = {1, 40, 41};
    const EngineInput input{cache.add(), tokens, /*is_prompt=*/true, 2};
    std::vector<float> logits(engine->n_vocab());
    const MatrixView<float> row(logits.data(), 1, engine->n_vocab());
    // The cache itself may refuse values that are not finite.
    const Status stepped = engine->step(cache, *backend, {&input, 1}, row);
    const Status sound = stepped.ok() ? check_logits(*engine, row) : stepped;
    EXPECT_EQ(sound.ok(), *tensor == 0) << tensor;
    if (stepped.ok() && !sound.ok()) {
      EXPECT_NE(sound.error().message.find(engine->geometry().model), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace kvant
