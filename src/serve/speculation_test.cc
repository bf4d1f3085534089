// Tests speculative decoding in the scheduler. Completions must take fewer steps, and have the same bits as
// without drafts.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "cache/cache_fixture.h"
#include "model/random_tokens.h"
#include "model/tiny_engines.h"
#include "model/tiny_model.h"
#include "serve/scheduler.h"
#include "serve/scheduler_memory.h"

namespace kvant::speculation_test {
namespace {

using testing::random_tokens;
using Tokens = std::vector<std::int32_t>;

struct Reply {
  Tokens tokens;
  std::vector<double> probabilities;  // each token and its alternatives have a probability
  TokenUsage usage;
  bool operator==(const Reply& other) const {
    return tokens == other.tokens && probabilities == other.probabilities;
  }
};

Reply read_all(AnswerStream& stream) {
  Reply reply;
  AnswerPart part;
  while (stream.read(std::chrono::milliseconds(0), part) == AnswerStream::Next::part) {
    for (const ReportedToken& token : part.tokens) {
      reply.tokens.push_back(token.chosen.token);
      for (const TokenProbability& other : token.alternatives)
        reply.probabilities.push_back(other.log_probability);
    }
  }
  EXPECT_FALSE(stream.failure()) << stream.failure()->message;
  reply.usage = stream.usage();
  return reply;
}

GenerationRequest request(Tokens prompt, int max_tokens, float temperature) {
  GenerationRequest request{.prompt = std::move(prompt), .sampling = {.temperature = temperature, .seed = 7}};
  request.generation = {.max_tokens = max_tokens, .wants_probabilities = true, .alternatives = 3};
  return request;
}

class Drafts : public testing::TinyEngines {
 protected:
  std::unique_ptr<Scheduler> scheduler(int most_drafted, const std::string& sessions = "",
                                       std::shared_ptr<DraftModel> draft_model = nullptr) {
    const auto plan = testing::plan_for(recipe(), engine_->geometry(), nullptr, backend_->page_order());
    SchedulerOptions options{.context = 1024,
                             .parallel = 8,
                             .most_drafted = most_drafted,
                             .draft_model = std::move(draft_model),
                             .memory = 256 << 20};
    set_sequence_bytes(plan, options);
    std::shared_ptr<const SessionFolder> folder;
    if (!sessions.empty())
      folder = SessionFolder::open(sessions, session_identity(*plan, engine_->fingerprint(), "")).value();
    return Scheduler::make(*engine_, *backend_, plan, options, folder).value();
  }

  static std::vector<Reply> ask(Scheduler& scheduler, const std::vector<GenerationRequest>& requests) {
    std::vector<std::shared_ptr<AnswerStream>> streams;
    for (const GenerationRequest& r : requests) {
      streams.push_back(std::make_shared<AnswerStream>());
      EXPECT_FALSE(scheduler.submit(r, streams.back()));
    }
    while (!scheduler.idle()) scheduler.step();
    std::vector<Reply> replies;
    for (const auto& stream : streams) replies.push_back(read_all(*stream));
    return replies;
  }
};

INSTANTIATE_TEST_SUITE_P(Recipes, Drafts,
                         ::testing::Combine(::testing::Values("bf16", "kvant-4bit", "turboattention-4bit",
                                                              "vquant-k4v2", "kvlinc-2bit"),
                                            ::testing::Values(false)),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param);
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !isalnum(c); }, '_');
                           return name;
                         });

// Greedy completions soon repeat themselves, so drafts from the sequence are right. The drawn completions get
// their plain result as expected text.
TEST_P(Drafts, ChangeNoBitOfAnAnswer) {
  std::vector<GenerationRequest> requests;
  for (const int n : {5, 100, 230}) requests.push_back(request(random_tokens(n, n), 150, /*temperature=*/0));
  for (const int n : {40, 120}) requests.push_back(request(random_tokens(n, n), 90, /*temperature=*/1));
  const std::vector<Reply> plain = ask(*scheduler(0), requests);
  for (std::size_t i = 3; i < requests.size(); ++i) requests[i].expected = plain[i].tokens;
  int drafted = 0, accepted = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Reply alone = ask(*scheduler(15), {requests[i]}).front();
    EXPECT_EQ(alone, plain[i]) << i;
    drafted += alone.usage.drafted;
    accepted += alone.usage.accepted;
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(drafted, accepted);  // some drafts must be wrong
  const auto together = scheduler(15);
  const std::vector<Reply> found = ask(*together, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(found[i], plain[i]) << i;
  const SchedulerCounters counters = together->status().counters;
  int of_answers = 0;
  for (const Reply& reply : found) of_answers += reply.usage.drafted;
  EXPECT_EQ(counters.drafted_tokens, of_answers);
  EXPECT_LE(counters.accepted_tokens, counters.drafted_tokens);
}

// The draft model has the same weights as the target, so the draft model is wrong only because of the
// recipe's error. Granite divides its logits by logit_scale, which makes the model confident enough to draft.
TEST_P(Drafts, OfAModelChangeNoBitOfAnAnswer) {
  const auto file = write_tiny_model({.architecture = "granite",
                                      .n_layers = 2,
                                      .matrix_type = GGML_TYPE_Q8_0,
                                      .numbers = {{"logit_scale", 0.05F}}});
  const auto sure = Engine::load(file->path(), {.n_threads = 1}).value();
  engine_ = sure.get();
  const auto bf16 = testing::plan_for("bf16", engine_->geometry(), nullptr, backend_->page_order());
  std::vector<GenerationRequest> requests;
  for (const int n : {5, 100, 230}) requests.push_back(request(random_tokens(n, n), 150, /*temperature=*/0));
  requests.push_back(request(random_tokens(40, 40), 90, /*temperature=*/1));
  const std::vector<Reply> plain = ask(*scheduler(0), requests);
  const auto model = DraftModel::make(*engine_, *backend_, bf16, *engine_, /*byte_limit=*/0).value();
  const auto together = scheduler(15, "", model);
  const std::vector<Reply> found = ask(*together, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(found[i], plain[i]) << i;
  const SchedulerCounters counters = together->status().counters;
  EXPECT_GT(counters.drafted_tokens, 0);
  EXPECT_LE(counters.accepted_tokens, counters.drafted_tokens);
}

// A session must have the same contents with and without drafts, and continue in the same way.
TEST_P(Drafts, LeaveNothingInASession) {
  const TinyFile plain_folder("sessions"), folder("sessions");
  auto first = request(random_tokens(200, 1), 120, /*temperature=*/0);
  first.session = "chat";
  std::vector<Reply> next;
  Tokens read;
  for (const bool drafts : {false, true}) {
    auto kept = scheduler(drafts ? 15 : 0, (drafts ? folder : plain_folder).path());
    const Reply begun = ask(*kept, {first}).front();
    EXPECT_EQ(begun.usage.accepted > 0, drafts);
    first.expected = begun.tokens;
    read = first.prompt;
    read.insert(read.end(), begun.tokens.begin(), begun.tokens.end());
    const Tokens more = random_tokens(50, 2);
    read.insert(read.end(), more.begin(), more.end());
    auto again = request(read, 20, /*temperature=*/0);
    again.session = "chat";
    next.push_back(ask(*kept, {again}).front());
    kept.reset();
    std::filesystem::remove_all((drafts ? folder : plain_folder).path());
  }
  EXPECT_EQ(next[0], next[1]);
  EXPECT_EQ(next[0].usage.cached, next[1].usage.cached);
}

}  // namespace
}  // namespace kvant::speculation_test
