// Tests LongRoPE in the scheduler. Short sequences use one set of factors, and long sequences use another
// set. A sequence that grows too long for the first set must continue as if the second set had been used from
// the start.
#include <gtest/gtest.h>

#include <vector>

#include "cache/cache_fixture.h"
#include "model/random_tokens.h"
#include "model/tiny_model.h"
#include "model/tiny_variants.h"
#include "serve/scheduler.h"
#include "serve/scheduler_memory.h"

namespace kvant::long_rope_test {
namespace {

using testing::random_tokens;
using Tokens = std::vector<std::int32_t>;

constexpr int kShort = 256;  // tokens; longer sequences use the long factors

struct Reply {
  Tokens tokens;
  std::vector<double> probabilities;
  int cached = 0;
  bool operator==(const Reply& other) const {
    return tokens == other.tokens && probabilities == other.probabilities;
  }
};

GenerationRequest request(Tokens prompt, int max_tokens) {
  GenerationRequest request{.prompt = std::move(prompt)};
  request.sampling.temperature = 0;
  request.generation = {.max_tokens = max_tokens, .wants_probabilities = true, .alternatives = 3};
  return request;
}

class LongRope : public ::testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() {
    TinyModel model = model_of(variants(), "phi3_long_factors");
    ASSERT_TRUE(model.long_rope_factors);
    model.matrix_type = GGML_TYPE_Q8_0;
    file_ = write_tiny_model(model).release();
    either_ = Engine::load(file_->path(), {.n_threads = 1, .context = 1024}).value().release();
    short_ = Engine::load(file_->path(), {.n_threads = 1, .context = kShort}).value().release();
  }
  static void TearDownTestSuite() {
    delete short_;
    delete either_;
    delete file_;
  }

  std::unique_ptr<Scheduler> scheduler(Engine& engine) {
    const auto plan = testing::plan_for("bf16", engine.geometry(), nullptr, backend_->page_order());
    SchedulerOptions options{.context = 1024, .parallel = 8, .most_drafted = GetParam(), .memory = 256 << 20};
    set_sequence_bytes(plan, options);
    return Scheduler::make(engine, *backend_, plan, options).value();
  }

  static std::vector<Reply> ask(Scheduler& scheduler, const std::vector<GenerationRequest>& requests) {
    std::vector<std::shared_ptr<AnswerStream>> streams;
    for (const GenerationRequest& r : requests) {
      streams.push_back(std::make_shared<AnswerStream>());
      EXPECT_FALSE(scheduler.submit(r, streams.back()));
    }
    while (!scheduler.idle()) scheduler.step();
    std::vector<Reply> replies;
    for (const auto& stream : streams) {
      Reply& reply = replies.emplace_back();
      AnswerPart part;
      while (stream->read(std::chrono::milliseconds(0), part) == AnswerStream::Next::part) {
        for (const ReportedToken& token : part.tokens) {
          reply.tokens.push_back(token.chosen.token);
          for (const TokenProbability& other : token.alternatives)
            reply.probabilities.push_back(other.log_probability);
        }
      }
      EXPECT_FALSE(stream->failure()) << stream->failure()->message;
      reply.cached = stream->usage().cached;
    }
    return replies;
  }
  Reply ask(Engine& engine, Tokens prompt, int max_tokens) {
    return ask(*scheduler(engine), {request(std::move(prompt), max_tokens)}).front();
  }

  static inline Engine *either_, *short_;
  static inline TinyFile* file_;
  std::unique_ptr<AttentionBackend> backend_ = make_cpu_backend();
};

INSTANTIATE_TEST_SUITE_P(Drafts, LongRope, ::testing::Values(0, 15), ::testing::PrintToStringParamName());

TEST_P(LongRope, HasTheFactorsForShortSequencesInShortOnes) {
  EXPECT_EQ(either_->short_rope_context(), kShort);
  EXPECT_EQ(short_->short_rope_context(), 0);
  EXPECT_EQ(ask(*either_, random_tokens(100, 1), 50), ask(*short_, random_tokens(100, 1), 50));
  EXPECT_EQ(ask(*either_, random_tokens(200, 2), kShort - 200),
            ask(*short_, random_tokens(200, 2), kShort - 200));
  EXPECT_FALSE(ask(*either_, random_tokens(300, 3), 9) == ask(*short_, random_tokens(300, 3), 9));
}

// The sequence holds kShort tokens at the last prediction with the short factors.
TEST_P(LongRope, ReadsASequenceAgainThatOutgrowsThem) {
  const Tokens prompt = random_tokens(240, 4);
  const int n_short = kShort - 240 + 1, n_long = 30;
  const Reply whole = ask(*either_, prompt, n_short + n_long), beginning = ask(*short_, prompt, n_short);
  Tokens read = prompt;
  read.insert(read.end(), beginning.tokens.begin(), beginning.tokens.end());
  const Reply end = ask(*either_, read, n_long);
  Reply expected = beginning;
  expected.tokens.insert(expected.tokens.end(), end.tokens.begin(), end.tokens.end());
  expected.probabilities.insert(expected.probabilities.end(), end.probabilities.begin(),
                                end.probabilities.end());
  EXPECT_EQ(whole, expected);
}

// The short and the long factors give different keys, so a prefix of one kind must not serve a prompt of the
// other kind.
TEST_P(LongRope, KeepsSequencesOfBothKindsApart) {
  Tokens longer = random_tokens(200, 5);
  const Tokens more = random_tokens(150, 6);
  longer.insert(longer.end(), more.begin(), more.end());
  const std::vector<GenerationRequest> requests = {request(random_tokens(200, 5), 20), request(longer, 20),
                                                   request(random_tokens(230, 7), 60),
                                                   request(random_tokens(40, 8), 20)};
  std::vector<Reply> alone;
  for (const GenerationRequest& r : requests) alone.push_back(ask(*scheduler(*either_), {r}).front());
  const auto shared = scheduler(*either_);
  for (int round = 0; round < 2; ++round) {
    const std::vector<Reply> together = ask(*shared, requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(together[i], alone[i]) << i;
      EXPECT_EQ(together[i].cached > 0, round == 1 && requests[i].prompt.size() > 128) << i;
    }
  }
}

}  // namespace
}  // namespace kvant::long_rope_test
