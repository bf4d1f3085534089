#include "cache/recurrent_states.h"

#include <gtest/gtest.h>

#include "cache/cache_fixture.h"

namespace kvant {
namespace {

using testing::append_tokens;
using testing::contents;

constexpr int kValues = 1000;

std::shared_ptr<const Plan> plan(const char* recipe = "k=ch4g128,v=tok4g128") {
  Geometry g = testing::small_geometry();
  g.n_recurrent_layers = 3;
  g.recurrent_values = kValues;
  return testing::plan_for(recipe, g);
}

// Holds a cache whose states depend on what a sequence has read and on its division into steps.
class Recurrent {
 public:
  explicit Recurrent(std::int64_t byte_limit = 0, const char* recipe = "k=ch4g128,v=tok4g128")
      : cache(plan(recipe), byte_limit) {}

  Status read(SequenceId sequence, int n, bool commit = true) {
    auto reserved = cache.reserve({{sequence, n, /*is_prompt=*/true}});
    if (!reserved.ok()) return reserved.error();
    Step& step = **reserved;
    for (int layer = 0; layer < step.plan().geometry.n_layers; ++layer)
      testing::run_layer_without_attention(step, layer);
    const float* before = step.state_before(0);
    for (int i = 0; i < kValues; ++i) {
      const float old = before == nullptr ? 0 : before[i];
      step.state_after(0)[i] = 0.5F * old + static_cast<float>(step.first_token(0) + n + i);
    }
    if (commit) return step.commit();
    step.abort();
    return {};
  }

  // Returns the state of a sequence. The list is empty if the sequence is new.
  std::vector<float> state(SequenceId sequence) {
    const auto step = cache.reserve({{sequence, 1, true}}).value();
    const float* values = step->state_before(0);
    return values == nullptr ? std::vector<float>() : std::vector<float>(values, values + kValues);
  }

  SequenceId with(std::initializer_list<int> steps) {
    const SequenceId sequence = cache.add();
    for (const int n : steps) EXPECT_TRUE(read(sequence, n).ok());
    return sequence;
  }

  Cache cache;
};

TEST(RecurrentState, IsZeroAtFirstAndGoesOnWithEachStep) {
  Recurrent r;
  const SequenceId s = r.cache.add();
  EXPECT_TRUE(r.state(s).empty());
  ASSERT_TRUE(r.read(s, 10).ok());
  EXPECT_EQ(r.state(s)[3], 13);
  ASSERT_TRUE(r.read(s, 5).ok());
  EXPECT_EQ(r.state(s)[3], 6.5F + 18);
}

TEST(RecurrentState, IsAsItWasAfterAStepThatIsAborted) {
  Recurrent r;
  const SequenceId s = r.with({10}), fresh = r.cache.add();
  const auto before = r.state(s);
  ASSERT_TRUE(r.read(s, 5, /*commit=*/false).ok());
  ASSERT_TRUE(r.read(fresh, 5, /*commit=*/false).ok());
  EXPECT_EQ(r.state(s), before);
  EXPECT_TRUE(r.state(fresh).empty());
}

TEST(RecurrentState, OfAForkIsItsOwnOnceItGoesOn) {
  Recurrent r;
  const SequenceId s = r.with({200});
  const SequenceId fork = r.cache.fork(s).value();
  EXPECT_EQ(r.state(fork), r.state(s));
  const auto before = r.state(s);
  ASSERT_TRUE(r.read(fork, 7).ok());
  EXPECT_EQ(r.state(s), before);
  EXPECT_EQ(r.state(fork), r.state(r.with({200, 7})));
  r.cache.free(s);
  EXPECT_EQ(r.state(fork), r.state(r.with({200, 7})));
}

TEST(RecurrentState, GoesBackToNothingOrToACheckpointAlone) {
  Recurrent r;
  const SequenceId s = r.with({200, 30});
  const auto error = r.cache.truncate(s, 210);
  ASSERT_FALSE(error.ok());
  EXPECT_NE(
      error.error().message.find("layers without attention, whose state is known after 230 tokens alone"),
      std::string::npos)
      << error.error().message;
  ASSERT_TRUE(r.cache.checkpoint(s).ok());
  ASSERT_TRUE(r.read(s, 60).ok());
  const std::string whole = contents(r.cache, s);
  EXPECT_FALSE(r.cache.truncate(s, 231).ok());
  EXPECT_FALSE(r.cache.truncate(s, 200).ok());
  EXPECT_EQ(contents(r.cache, s), whole);
  EXPECT_TRUE(r.cache.truncate(s, 290).ok());  // The length does not change.
  const SequenceId fork = r.cache.fork(s).value();
  for (const SequenceId id : {s, fork, s}) {  // The last round cuts the first sequence again.
    ASSERT_TRUE(r.cache.truncate(id, 230).ok());
    EXPECT_EQ(r.state(id), r.state(r.with({200, 30})));
    ASSERT_TRUE(r.read(id, 40).ok());
    EXPECT_EQ(r.state(id), r.state(r.with({200, 30, 40})));
  }
  ASSERT_TRUE(r.cache.truncate(s, 0).ok());
  EXPECT_TRUE(r.state(s).empty());
  ASSERT_TRUE(r.read(s, 240).ok());
  EXPECT_EQ(r.state(s), r.state(r.with({240})));
  EXPECT_FALSE(r.cache.truncate(s, 230).ok());  // The checkpoint went with the tokens.
}

TEST(RecurrentState, IsPartOfAnImage) {
  Recurrent r, other;
  const SequenceId s = r.with({300});
  ASSERT_TRUE(r.cache.checkpoint(s).ok());
  ASSERT_TRUE(r.read(s, 50).ok());
  const auto bytes = r.cache.export_sequence(s).value();
  const SequenceId copy = other.cache.import_sequence(bytes).value();
  EXPECT_EQ(contents(other.cache, copy), contents(r.cache, s));
  EXPECT_EQ(other.state(copy), r.state(s));
  ASSERT_TRUE(other.cache.truncate(copy, 300).ok());
  EXPECT_EQ(other.state(copy), r.state(r.with({300})));
  // A checkpoint of the whole length is stored as the state itself, so the export has one state less.
  ASSERT_TRUE(r.cache.checkpoint(s).ok());
  const auto shorter = r.cache.export_sequence(s).value();
  EXPECT_EQ(shorter.size(), bytes.size() - kValues * sizeof(float));
  const SequenceId same = other.cache.import_sequence(shorter).value();
  ASSERT_TRUE(other.read(same, 10).ok());
  ASSERT_TRUE(other.cache.truncate(same, 350).ok());
  EXPECT_EQ(other.state(same), r.state(s));
  const auto empty = r.cache.export_sequence(r.cache.add()).value();
  EXPECT_TRUE(other.state(other.cache.import_sequence(empty).value()).empty());
  for (const std::size_t n : {bytes.size() - 1, std::size_t{40}, std::size_t{60}, std::size_t{3000}})
    EXPECT_FALSE(other.cache.import_sequence(std::span(bytes).first(n)).ok()) << n;
}

TEST(RecurrentState, IsCountedOnceForAllWhoShareIt) {
  constexpr std::int64_t kBytes = kValues * sizeof(float);
  Recurrent r;
  const SequenceId s = r.cache.add();
  EXPECT_EQ(r.cache.bytes(s).recurrent, 0);
  ASSERT_TRUE(r.read(s, 200).ok());
  EXPECT_EQ(r.cache.bytes(s).recurrent, kBytes);
  EXPECT_EQ(r.cache.bytes(s).with_states(), r.cache.bytes(s).all() + kBytes);
  const SequenceId fork = r.cache.fork(s).value();
  EXPECT_EQ(r.cache.bytes().recurrent, kBytes);
  ASSERT_TRUE(r.cache.checkpoint(s).ok());
  EXPECT_EQ(r.cache.bytes().recurrent, kBytes);
  ASSERT_TRUE(r.read(s, 1).ok());
  EXPECT_EQ(r.cache.bytes(s).recurrent, 2 * kBytes);
  EXPECT_EQ(r.cache.bytes().recurrent, 2 * kBytes);
  const std::int64_t in_use = r.cache.page_bytes_in_use();
  r.cache.free(fork);
  EXPECT_EQ(r.cache.bytes().recurrent, 2 * kBytes);
  EXPECT_LT(r.cache.page_bytes_in_use(), in_use);  // The fork's tail gives pages back.
  r.cache.free(s);
  EXPECT_EQ(r.cache.page_bytes_in_use(), 0);
}

// A step of two sequences takes and releases two states, so at most two released states are kept.
TEST(RecurrentState, MemoryOfNobodysIsKeptForOneStep) {
  MemoryBudget budget(0);
  {
    RecurrentStates states(kValues, budget);
    states.keep_spares(2);
    std::vector<std::shared_ptr<float>> held;
    for (int i = 0; i < 5; ++i) held.push_back(states.take());
    EXPECT_EQ(budget.taken(), 5 * states.state_bytes());
    held.clear();
    EXPECT_EQ(states.bytes_in_use(), 0);
    EXPECT_EQ(budget.taken(), 2 * states.state_bytes());
    EXPECT_NE(states.take(), nullptr);
    EXPECT_EQ(budget.taken(), 2 * states.state_bytes());
    states.keep_spares(0);
    EXPECT_EQ(budget.taken(), 0);
  }
  EXPECT_EQ(budget.taken(), 0);
}

TEST(RecurrentState, WithoutMemoryForItAStepLeavesTheSequenceAsItWas) {
  Recurrent unlimited;
  unlimited.with({1});
  Recurrent r(unlimited.cache.bytes_reserved() +
              kValues * sizeof(float));  // The budget has room for two states.
  const SequenceId first = r.with({1});
  const SequenceId kept = r.cache.fork(first).value();
  const auto before = r.state(first);
  ASSERT_TRUE(r.read(first, 1).ok());  // The fork holds the other state.
  const Status refused = r.read(kept, 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_TRUE(refused.error().is_shortage);
  EXPECT_EQ(r.cache.length(kept), 1);
  r.cache.free(first);
  EXPECT_EQ(r.state(kept), before);
  EXPECT_TRUE(r.read(kept, 1).ok());
}

}  // namespace
}  // namespace kvant
