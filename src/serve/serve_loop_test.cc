#include "serve/serve_loop.h"

#include <gtest/gtest.h>

#include "serve/serve_fixture.h"

namespace kvant {
namespace {

using testing::FakeEngine;
using testing::NoBackend;

class ServeLoopTest : public ::testing::Test {
 protected:
  std::unique_ptr<Scheduler> scheduler(const std::string& recipe = "kvant-3bit") {
    SchedulerOptions options{.context = 2048, .parallel = 3, .queue = 1000, .memory = 1 << 30};
    options.sequence_bytes = [](int n) { return std::int64_t{n} * 512; };
    return Scheduler::make(engine_, backend_, testing::plan_for(recipe, engine_.geometry()), options).value();
  }
  static GenerationRequest request(int n, int max_tokens) {
    GenerationRequest request{.prompt = std::vector<std::int32_t>(n, 1 + n % 50)};
    request.generation.max_tokens = max_tokens;
    return request;
  }
  // Waits for the end of a completion. Returns how many tokens were generated, or -1 after a failure.
  static int wait(AnswerStream& stream) {
    AnswerPart part;
    while (stream.read(std::chrono::seconds(10), part) == AnswerStream::Next::part) {
    }
    return stream.failure() ? -1 : stream.usage().generated;
  }

  FakeEngine engine_{testing::small_geometry(/*head_dim=*/16)};
  NoBackend backend_;
};

TEST_F(ServeLoopTest, AnswersManyThreads) {
  ServeLoop loop(scheduler());
  std::vector<std::thread> clients;
  std::atomic<int> wrong = 0;
  for (int c = 0; c < 8; ++c) {
    clients.emplace_back([&, c] {
      for (int i = 0; i < 6; ++i) {
        const auto stream = std::make_shared<AnswerStream>();
        if (loop.submit(request(1 + c * 20 + i, 5 + i), stream)) ++wrong;
        if (i == 3) stream->cancel();
        if (i != 3 && wait(*stream) != 5 + i) ++wrong;
        if (loop.status().running_answers > 3) ++wrong;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
  for (int i = 0; i < 1000 && !loop.idle(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(loop.idle());
  EXPECT_EQ(loop.status().promised_bytes, 0);
}

TEST_F(ServeLoopTest, AnswersByEachOfTwoRecipes) {
  ServeLoop loop(scheduler(), scheduler("kivi-2bit"));
  std::vector<std::shared_ptr<AnswerStream>> streams;
  for (int i = 0; i < 9; ++i) {
    GenerationRequest r = request(300, 20 + i);
    r.recipe = i % 3 == 0 ? 1 : 0;
    streams.push_back(std::make_shared<AnswerStream>());
    EXPECT_FALSE(loop.submit(std::move(r), streams.back()));
  }
  for (int i = 0; i < 9; ++i) EXPECT_EQ(wait(*streams[i]), 20 + i);
  EXPECT_EQ(loop.status(0).counters.generated_tokens, 21 + 22 + 24 + 25 + 27 + 28);
  EXPECT_EQ(loop.status(1).counters.generated_tokens, 20 + 23 + 26);
  // The second recipe's cache must miss, because the prefix in the other recipe's cache is useless for it.
  EXPECT_EQ(loop.status(1).counters.prefix_misses, 1);
  EXPECT_GT(loop.cache_view(1).page_bytes, 0);
}

TEST_F(ServeLoopTest, FinishesWhatWasTakenBeforeRequestsWereRefused) {
  ServeLoop loop(scheduler());
  const auto taken = std::make_shared<AnswerStream>(), refused = std::make_shared<AnswerStream>();
  EXPECT_FALSE(loop.submit(request(100, 200), taken));
  loop.refuse_requests();
  const auto refusal = loop.submit(request(10, 10), refused);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->reason, Refusal::Reason::busy);
  EXPECT_EQ(wait(*taken), 200);
}

TEST_F(ServeLoopTest, FailsWhatIsNotAnsweredAtItsEnd) {
  ServeLoop loop(scheduler());
  std::vector<std::shared_ptr<AnswerStream>> streams;
  for (int i = 0; i < 5; ++i) {
    streams.push_back(std::make_shared<AnswerStream>());
    EXPECT_FALSE(loop.submit(request(1000, 1000), streams.back()));
  }
  loop.end();
  for (const auto& stream : streams) EXPECT_EQ(wait(*stream), -1);
  EXPECT_TRUE(loop.submit(request(10, 10), std::make_shared<AnswerStream>()));
  EXPECT_TRUE(loop.status().requests.empty());
}

}  // namespace
}  // namespace kvant
