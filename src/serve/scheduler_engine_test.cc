// The scheduler on a real engine: what runs beside an answer, and what is kept of earlier prompts, changes
// none of its bits.
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "eval/cache_size.h"
#include "model/tiny_model.h"
#include "recipe/plan.h"
#include "recipe/recipe_fixture.h"
#include "serve/scheduler.h"
#include "serve/serve_fixture.h"

namespace kvant {
namespace {

using Tokens = std::vector<std::int32_t>;

Tokens random_tokens(int n, int seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<std::int32_t> token(3, TinyModelWriter::kVocabulary - 1);
  Tokens tokens(n);
  for (std::int32_t& t : tokens) t = token(random);
  return tokens;
}

Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// What was answered: the tokens, and the probabilities of each and of its rivals to the last bit.
struct Reply {
  std::vector<std::int32_t> tokens;
  std::vector<double> probabilities;
  int cached = 0;
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
      reply.probabilities.push_back(token.chosen.log_probability);
      for (const TokenProbability& other : token.alternatives)
        reply.probabilities.push_back(other.log_probability);
    }
  }
  EXPECT_FALSE(stream.failure()) << stream.failure()->message;
  reply.cached = stream.usage().cached;
  return reply;
}

GenerationRequest request(Tokens prompt, int max_tokens, std::uint32_t seed) {
  GenerationRequest request{.prompt = std::move(prompt), .sampling = {.temperature = 1, .seed = seed}};
  request.generation = {.max_tokens = max_tokens, .wants_probabilities = true, .alternatives = 5};
  return request;
}

// A tiny model, loaded once for all tests.
class SchedulerOnEngine : public ::testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() {
    const TinyModel model{.n_layers = 2, .n_embd = 64, .matrix_type = GGML_TYPE_Q8_0};
    file_ = write_tiny_model(model).release();
    engine_ = Engine::load(file_->path(), {.n_threads = 1}).value().release();
  }
  static void TearDownTestSuite() {
    delete engine_;
    delete file_;
  }

  // sessions: a folder for them; empty: none are kept.
  std::unique_ptr<Scheduler> scheduler(int prompt_step = 64, const std::string& sessions = "") {
    const auto plan = testing::plan_for(GetParam(), engine_->geometry(), nullptr, backend_->page_order());
    SchedulerOptions options{.context = 1024, .parallel = 8, .prompt_step = prompt_step, .memory = 256 << 20};
    options.sequence_bytes = [plan](int n) { return largest_cache_bytes(*plan, n); };
    std::shared_ptr<const SessionFolder> folder;
    if (!sessions.empty()) {
      folder = SessionFolder::open(sessions, session_identity(*plan, engine_->fingerprint(), "")).value();
    }
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

  static Engine* engine_;
  static TinyFile* file_;
  std::unique_ptr<AttentionBackend> backend_ = make_cpu_backend();
};
Engine* SchedulerOnEngine::engine_ = nullptr;
TinyFile* SchedulerOnEngine::file_ = nullptr;

INSTANTIATE_TEST_SUITE_P(ProductRecipes, SchedulerOnEngine, ::testing::ValuesIn(testing::product_recipes()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !isalnum(c); }, '_');
                           return name;
                         });

TEST_P(SchedulerOnEngine, AnswersFromAKeptBeginningAsIfItHadReadAll) {
  const Tokens shared = random_tokens(300, 1);
  const auto first = request(joined(shared, random_tokens(170, 2)), 20, 1);
  const auto again = request(joined(first.prompt, random_tokens(61, 3)), 20, 2);
  const auto other = request(joined(shared, random_tokens(90, 4)), 20, 3);
  const auto another = request(joined(shared, random_tokens(120, 5)), 20, 4);
  const auto kept = scheduler();
  for (const auto& r : {first, again, other, another, again}) {
    const Reply reply = ask(*kept, {r}).front();
    const Reply alone = ask(*scheduler(), {r}).front();
    EXPECT_FALSE(alone.tokens.empty());
    EXPECT_EQ(reply, alone);
    EXPECT_EQ(alone.cached, 0);
  }
  const SchedulerCounters counters = kept->status().counters;
  EXPECT_GE(counters.prefix_hits, 3);
  EXPECT_GE(counters.cached_tokens, 384 + 256 + 384);
}

TEST_P(SchedulerOnEngine, AnswersSeveralAtATimeAsEachAlone) {
  std::vector<GenerationRequest> requests;
  for (const int n : {5, 40, 127, 128, 129, 200, 290, 420})
    requests.push_back(request(random_tokens(n, n), 12, n));
  const std::vector<Reply> together = ask(*scheduler(/*prompt_step=*/32), requests);
  for (std::size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(together[i], ask(*scheduler(/*prompt_step=*/128), {requests[i]}).front()) << i;
}

// The follow-up of a session is the same from memory, from the disk and from a fork, in steps of any size,
// and whoever else is answered.
TEST_P(SchedulerOnEngine, GoesOnWithASessionBitForBit) {
  const TinyFile folder("sessions");
  auto first = request(random_tokens(300, 1), 100, 1);
  first.session = "chat";
  std::vector<Reply> replies;
  GenerationRequest next;
  int held = 0;
  {
    const auto kept = scheduler(/*prompt_step=*/64, folder.path());
    next = request(joined(joined(first.prompt, ask(*kept, {first}).front().tokens), random_tokens(150, 2)),
                   30, 2);
    next.session = "fork";
    held = kept->sessions()->status("chat")->tokens;
    EXPECT_FALSE(kept->fork_session("chat", "fork"));
    EXPECT_FALSE(kept->fork_session("chat", "saved"));
    auto beside = request(random_tokens(90, 7), 60, 3);
    replies.push_back(ask(*kept, {beside, next, request(random_tokens(400, 8), 5, 4)})[1]);
    next.session = "chat";
    replies.push_back(ask(*kept, {next}).front());
  }
  auto restarted = scheduler(/*prompt_step=*/256, folder.path());
  next.session = "saved";
  replies.push_back(ask(*restarted, {next}).front());
  EXPECT_GT(held, 310);  // with most of the answer
  for (const Reply& reply : replies) {
    EXPECT_FALSE(reply.tokens.empty());
    EXPECT_EQ(reply.cached, held);
    EXPECT_EQ(reply, replies.front());
  }
  restarted.reset();
  std::filesystem::remove_all(folder.path());
}

}  // namespace
}  // namespace kvant
