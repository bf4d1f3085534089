// Tests speculative decoding on the CPU. Rows that are verified in one step must get the same bits as in
// steps of one token, and wrong drafts must leave no trace.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/page_size.h"
#include "cache/cache_fixture.h"
#include "cache/rewindable_tokens.h"
#include "model/random_tokens.h"
#include "model/tiny_engines.h"
#include "recipe/recipe_fixture.h"

namespace kvant::speculated_rows_test {
namespace {

using Tokens = std::vector<std::int32_t>;

using testing::random_tokens;

// Pair holds a sequence that decodes token by token, and a sequence that uses drafts.
class Pair {
 public:
  Pair(Engine& engine, AttentionBackend& backend, const std::string& recipe)
      : engine_(engine),
        backend_(backend),
        cache_(testing::plan_for(recipe, engine.geometry(), nullptr, backend.page_order()), 0),
        plain_(cache_.add()),
        drafting_(cache_.add()) {}

  std::vector<float> step(SequenceId sequence, std::span<const std::int32_t> tokens, bool is_prompt) {
    const int n = is_prompt ? 1 : static_cast<int>(tokens.size());
    std::vector<float> logits(static_cast<std::size_t>(n) * engine_.n_vocab());
    const EngineInput input{sequence, tokens, is_prompt, static_cast<int>(tokens.size()) - n};
    const Status done = engine_.step(cache_, backend_, {&input, 1}, {logits.data(), n, engine_.n_vocab()});
    EXPECT_TRUE(done.ok()) << done.error().message;
    return logits;
  }

  void read(const Tokens& prompt) {
    for (const SequenceId sequence : {plain_, drafting_}) step(sequence, prompt, /*is_prompt=*/true);
  }

  // Decodes the next tokens in both sequences. The draft has the right tokens after the first, followed by
  // `wrong` others.
  void decode(std::span<const std::int32_t> next, int wrong) {
    std::vector<float> alone;
    for (const std::int32_t token : next) {
      const std::vector<float> of_token = step(plain_, {&token, 1}, false);
      alone.insert(alone.end(), of_token.begin(), of_token.end());
    }
    const int before = cache_.length(drafting_), kept = before + static_cast<int>(next.size());
    Tokens draft(next.begin(), next.end());
    const Tokens others = random_tokens(wrong, before);
    draft.insert(draft.end(), others.begin(), others.end());
    ASSERT_LE(std::ssize(draft), rewindable_tokens(cache_, drafting_));
    std::vector<float> together = step(drafting_, draft, false);
    together.resize(alone.size());
    EXPECT_EQ(together, alone) << "after " << before << " tokens";
    const Status cut = cache_.truncate(drafting_, kept);
    ASSERT_TRUE(cut.ok()) << cut.error().message;
  }

  void expect_equal() {
    EXPECT_EQ(cache_.export_sequence(plain_).value(), cache_.export_sequence(drafting_).value())
        << cache_.length(plain_);
  }

  int room() const { return rewindable_tokens(cache_, drafting_); }
  int length() const { return cache_.length(drafting_); }

 private:
  Engine& engine_;
  AttentionBackend& backend_;
  Cache cache_;
  SequenceId plain_, drafting_;
};

// Decodes with drafts of many lengths up to token `end`. Each draft is right up to a random place.
void go_on(Pair& pair, int most_rows, int end) {
  std::mt19937 random(pair.length());
  while (pair.length() < end) {
    const int room = std::min(pair.room(), most_rows);
    const int right = std::uniform_int_distribution<int>(0, room - 1)(random);
    const int wrong = std::uniform_int_distribution<int>(0, room - 1 - right)(random);
    pair.decode(random_tokens(1 + right, pair.length()), wrong);
  }
  pair.expect_equal();
}

class SpeculatedRows : public testing::TinyEngines {};

INSTANTIATE_TEST_SUITE_P(ProductRecipes, SpeculatedRows,
                         ::testing::Combine(::testing::ValuesIn(testing::product_recipes()),
                                            ::testing::Values(false)),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param);
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !isalnum(c); }, '_');
                           return name;
                         });

// Drafts cross the end of a page. One draft is wrong at each position near the end, and other drafts are
// right up to various points.
TEST_P(SpeculatedRows, AreThoseOfTokensOneByOneAndLeaveNothingBehind) {
  const int most_rows = std::min(engine_->independent_sequences(), 16);
  ASSERT_GT(most_rows, 1);
  Pair pair(*engine_, *backend_, recipe());
  pair.read(random_tokens(2 * kPageTokens - 4, 1));
  for (int i = 0; i < 8; ++i) {
    pair.decode(random_tokens(1, 100 + i), std::min(pair.room(), most_rows) - 1);
    pair.expect_equal();
  }
  go_on(pair, most_rows, 2 * kPageTokens + 40);
}

// A layer with a window must keep the pages to which tokens before a wrong draft attend.
TEST(SpeculatedRowsOfWindows, LeaveNothingBehind) {
  const TinyFile file("speculated_windows.gguf");
  TinyModelWriter(tiny_windowed()).write(file.path());
  const auto engine = Engine::load(file.path(), {.n_threads = 1}).value();
  const auto backend = make_cpu_backend();
  for (const char* recipe : {"bf16", "kvant-4bit"}) {
    Pair pair(*engine, *backend, recipe);
    pair.read(random_tokens(250, 3));
    go_on(pair, std::min(engine->independent_sequences(), 16), 560);
  }
}

TEST(RewindableTokens, AreNoneOfAModelWithRecurrentStates) {
  const TinyFile file("speculated_hybrid.gguf");
  TinyModelWriter(tiny_hybrid()).write(file.path());
  const auto engine = Engine::load(file.path(), {.n_threads = 1}).value();
  const auto backend = make_cpu_backend();
  Pair pair(*engine, *backend, "kvant-4bit");
  pair.read(random_tokens(20, 1));
  EXPECT_EQ(pair.room(), 1);
}

}  // namespace
}  // namespace kvant::speculated_rows_test
