// Tests the scheduler on a real engine. Neither other requests nor kept prefixes may change a single bit of a
// completion.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "eval/cache_size.h"
#include "model/random_tokens.h"
#include "model/tiny_engines.h"
#include "model/tiny_model.h"
#include "recipe/plan.h"
#include "recipe/recipe_fixture.h"
#include "serve/answer_guard.h"
#include "serve/scheduler.h"
#include "serve/scheduler_memory.h"
#include "serve/serve_fixture.h"

namespace kvant::scheduler_engine_test {
namespace {

using testing::random_tokens;
using Tokens = std::vector<std::int32_t>;

Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Reply holds a completion's tokens, and the probabilities of each token and its alternatives. The test
// compares all of them bit for bit.
struct Reply {
  std::string text;
  std::vector<std::int32_t> tokens;
  std::vector<double> probabilities;
  int cached = 0;
  std::vector<ShadowToken> shadows;
  std::optional<GuardTally> guard;
  bool operator==(const Reply& other) const {
    return tokens == other.tokens && probabilities == other.probabilities;
  }
};

Reply read_all(AnswerStream& stream) {
  Reply reply;
  AnswerPart part;
  while (stream.read(std::chrono::milliseconds(0), part) == AnswerStream::Next::part) {
    reply.text += part.text;
    for (const ReportedToken& token : part.tokens) {
      reply.tokens.push_back(token.chosen.token);
      reply.probabilities.push_back(token.chosen.log_probability);
      if (token.shadow) reply.shadows.push_back(*token.shadow);
      for (const TokenProbability& other : token.alternatives)
        reply.probabilities.push_back(other.log_probability);
    }
  }
  EXPECT_FALSE(stream.failure()) << stream.failure()->message;
  reply.cached = stream.usage().cached;
  reply.guard = stream.usage().guard;
  return reply;
}

GenerationRequest request(Tokens prompt, int max_tokens, std::uint32_t seed) {
  GenerationRequest request{.prompt = std::move(prompt), .sampling = {.temperature = 1, .seed = seed}};
  request.generation = {.max_tokens = max_tokens, .wants_probabilities = true, .alternatives = 5};
  return request;
}

class SchedulerOnEngine : public testing::TinyEngines {
 protected:
  // `sessions` and `prefixes` are folders. If `sessions` is empty, sessions are not kept. If `prefixes` is
  // empty, prefixes are not written to disk.
  std::unique_ptr<Scheduler> scheduler(int prompt_step = 64, const std::string& sessions = "",
                                       const std::string& prefixes = "") {
    const auto plan = testing::plan_for(recipe(), engine_->geometry(), nullptr, backend_->page_order());
    SchedulerOptions options{.context = 1024, .parallel = 8, .prompt_step = prompt_step, .memory = 256 << 20};
    set_sequence_bytes(plan, options);
    options.shadow_plan = unquantized();
    options.shadow_memory = 64 << 20;
    options.shadow_bytes = [plan = unquantized()](int n) { return largest_cache_bytes(plan, n); };
    const auto folder = [&](const std::string& path) -> std::shared_ptr<const SessionFolder> {
      if (path.empty()) return nullptr;
      return SessionFolder::open(path, session_identity(*plan, engine_->fingerprint(), "")).value();
    };
    options.prefix_folder = folder(prefixes);
    options.prefix_disk = 1 << 30;
    return Scheduler::make(*engine_, *backend_, plan, options, folder(sessions)).value();
  }

  std::shared_ptr<const Plan> unquantized() const {
    const auto served = testing::plan_for(recipe(), engine_->geometry(), nullptr, backend_->page_order());
    return testing::plan_for(to_string(guard_recipe(*served)), engine_->geometry(), nullptr,
                             backend_->page_order());
  }

  static std::vector<Reply> ask(Scheduler& scheduler, const std::vector<GenerationRequest>& requests) {
    std::vector<std::shared_ptr<AnswerStream>> streams;
    for (const GenerationRequest& r : requests) {
      streams.push_back(std::make_shared<AnswerStream>());
      EXPECT_FALSE(scheduler.submit(r, streams.back()));
    }
    while (!scheduler.idle()) scheduler.step();
    std::vector<Reply> replies;
    replies.reserve(streams.size());
    for (const auto& stream : streams) replies.push_back(read_all(*stream));
    return replies;
  }
};

INSTANTIATE_TEST_SUITE_P(ProductRecipes, SchedulerOnEngine,
                         ::testing::Combine(::testing::ValuesIn(testing::product_recipes()),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           std::string name =
                               std::get<0>(info.param) + (std::get<1>(info.param) ? "_hybrid" : "");
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
  std::size_t n_tokens = 0;  // a model with random weights may end some completions at once, but not all
  for (const auto& r : {first, again, other, another, again}) {
    const Reply reply = ask(*kept, {r}).front();
    const Reply alone = ask(*scheduler(), {r}).front();
    n_tokens += alone.tokens.size();
    EXPECT_EQ(reply, alone);
    EXPECT_EQ(alone.cached, 0);
  }
  EXPECT_GT(n_tokens, 40U);
  const SchedulerCounters counters = kept->status().counters;
  EXPECT_GE(counters.prefix_hits, 3);
  EXPECT_GE(counters.cached_tokens, 384 + 256 + 384);
}

TEST_P(SchedulerOnEngine, AnswersFromABeginningOnTheDiskAsIfItHadReadAll) {
  const TinyFile folder("prefixes");
  const auto first = request(random_tokens(470, 2), 5, 1);
  const auto next = request(joined(first.prompt, random_tokens(61, 3)), 20, 2);
  ask(*scheduler(64, "", folder.path()), {first});
  auto restarted = scheduler(64, "", folder.path());
  const std::vector<Reply> replies = ask(*restarted, {next, request(random_tokens(90, 7), 30, 3), next});
  const Reply alone = ask(*scheduler(), {next}).front();
  EXPECT_FALSE(alone.tokens.empty());
  for (const Reply& reply : {replies.front(), replies.back()}) {
    EXPECT_EQ(reply, alone);
    EXPECT_GE(reply.cached, 384);
  }
  EXPECT_EQ(restarted->status().prefix_disk->hits, 1);
  restarted.reset();
  std::filesystem::remove_all(folder.path());
}

TEST_P(SchedulerOnEngine, AnswersSeveralAtATimeAsEachAlone) {
  std::vector<GenerationRequest> requests;
  for (const int n : {5, 40, 127, 128, 129, 200, 290, 420})
    requests.push_back(request(random_tokens(n, n), 12, n));
  const std::vector<Reply> together = ask(*scheduler(/*prompt_step=*/32), requests);
  for (std::size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(together[i], ask(*scheduler(/*prompt_step=*/128), {requests[i]}).front()) << i;
}

// A request that continues a session must get the same bits from memory, from disk and from a fork. Step
// sizes and other requests must not change the bits.
TEST_P(SchedulerOnEngine, GoesOnWithASessionBitForBit) {
  const TinyFile folder("sessions");
  auto first = request(random_tokens(300, 1), 100, 1);
  first.session = "chat";
  std::vector<Reply> replies;
  GenerationRequest next;
  int held = 0;
  std::size_t begun = 0;  // tokens of the first prompt and its completion, whose length is random
  {
    const auto kept = scheduler(/*prompt_step=*/64, folder.path());
    const auto read = joined(first.prompt, ask(*kept, {first}).front().tokens);
    begun = read.size();
    next = request(joined(read, random_tokens(150, 2)), 30, 2);
    next.session = "fork";
    held = kept->sessions()->status("chat")->tokens;
    for (const char* to : {"fork", "saved"})
      kept->fork_session("chat", to, [](const auto& failure) { EXPECT_FALSE(failure); });
    auto beside = request(random_tokens(90, 7), 60, 3);
    replies.push_back(ask(*kept, {beside, next, request(random_tokens(400, 8), 5, 4)})[1]);
    next.session = "chat";
    replies.push_back(ask(*kept, {next}).front());
  }
  auto restarted = scheduler(/*prompt_step=*/256, folder.path());
  next.session = "saved";
  replies.push_back(ask(*restarted, {next}).front());
  // The session holds all tokens but the newest, which was never decoded.
  EXPECT_GE(static_cast<std::size_t>(held) + 1, begun);
  for (const Reply& reply : replies) {
    EXPECT_FALSE(reply.tokens.empty());
    EXPECT_EQ(reply.cached, held);
    EXPECT_EQ(reply, replies.front());
  }
  restarted.reset();
  std::filesystem::remove_all(folder.path());
}

// A session must not contain a stop text, which the client does not get. A hybrid model's sequence cannot be
// cut, so the sequence returns to the end of its prompt.
TEST_P(SchedulerOnEngine, ASessionHasNothingOfAStopText) {
  const TinyFile folder("sessions");
  auto stopped = request(random_tokens(300, 1), 60, 1);
  std::string whole = ask(*scheduler(), {stopped}).front().text;
  for (int seed = 2; whole.size() < 16 && seed < 10; ++seed) {  // some completions end soon
    stopped = request(random_tokens(300, 1), 60, seed);
    whole = ask(*scheduler(), {stopped}).front().text;
  }
  ASSERT_GE(whole.size(), 16U);
  stopped.generation.stops = {whole.substr(10, 6)};
  stopped.session = "chat";
  auto kept = scheduler(/*prompt_step=*/64, folder.path());
  ask(*kept, {stopped});
  const int held = kept->sessions()->status("chat")->tokens;
  EXPECT_GE(held, 300);
  if (std::get<1>(GetParam())) {
    EXPECT_EQ(held, 300);
    auto next = request(joined(stopped.prompt, random_tokens(40, 2)), 5, 2);
    next.session = "chat";
    EXPECT_EQ(ask(*kept, {next}).front().cached, 300);
  }
  const Cache& cache = kept->cache();
  std::int64_t of_all = 0;
  for (const SequenceId s : cache.sequences()) {
    EXPECT_LE(cache.bytes(s).recurrent, engine_->geometry().recurrent_bytes());
    of_all += cache.bytes(s).with_states();
  }
  EXPECT_GE(of_all, cache.page_bytes_in_use());
  kept.reset();
  std::filesystem::remove_all(folder.path());
}

// Returns the KL divergence, the sum of p log(p / q), between the softmaxes of two rows of logits.
double divergence(std::span<const float> p_logits, std::span<const float> q_logits) {
  const auto log_sum = [](std::span<const float> logits) {
    double sum = 0;
    for (const float x : logits) sum += std::exp(static_cast<double>(x));
    return std::log(sum);
  };
  const double p_norm = log_sum(p_logits), q_norm = log_sum(q_logits);
  double kld = 0;
  for (std::size_t i = 0; i < p_logits.size(); ++i)
    kld += std::exp(p_logits[i] - p_norm) * ((p_logits[i] - p_norm) - (q_logits[i] - q_norm));
  return kld;
}

// A shadow chooses among all tokens, so its choice says nothing about a completion that a grammar restricts.
TEST_P(SchedulerOnEngine, AGuardIsForAFreeAnswer) {
  auto guarded = request(random_tokens(20, 1), 5, 1);
  guarded.guard = true;
  guarded.grammar = Grammar::make({R"(root ::= "a"*)"}, engine_->tokenizer()).value();
  const auto refusal = scheduler()->submit(guarded, std::make_shared<AnswerStream>());
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->reason, Refusal::Reason::wrong);
}

// A completion with a guard must equal the completion without one. The shadow must choose the tokens that a
// sequence in an unquantized cache would choose after the same tokens.
TEST_P(SchedulerOnEngine, GuardsAnAnswer) {
  auto guarded = request(random_tokens(300, 1), 30, 1);
  guarded.guard = true;
  const auto beside = request(random_tokens(90, 7), 40, 3);
  const auto several = scheduler();
  const Reply found = ask(*several, {beside, guarded, beside}).at(1);
  guarded.guard = false;
  const Reply alone = ask(*scheduler(), {guarded}).front();
  EXPECT_EQ(found, alone);
  EXPECT_FALSE(alone.guard);
  ASSERT_EQ(found.shadows.size(), found.tokens.size());

  const auto sampler = Sampler::make(guarded.sampling).value();
  const auto served = testing::plan_for(recipe(), engine_->geometry(), nullptr, backend_->page_order());
  Cache plain(unquantized(), 0), low(served, 0);
  std::vector<float> logits(engine_->n_vocab()), low_logits(engine_->n_vocab());
  const auto step = [&](Cache& cache, const Tokens& tokens, bool is_prompt, std::vector<float>& to) {
    const EngineInput input{0, tokens, is_prompt, static_cast<int>(tokens.size()) - 1};
    ASSERT_TRUE(engine_->step(cache, *backend_, {&input, 1}, {to.data(), 1, engine_->n_vocab()}).ok());
  };
  plain.add();
  low.add();
  int differing = 0;
  double sum = 0;
  constexpr std::int32_t kEnd =
      // The tiny model's end token may have been drawn, but it is not part of the completion.
      2;
  ASSERT_TRUE(found.guard);
  for (std::size_t i = 0; i < static_cast<std::size_t>(found.guard->tokens); ++i) {
    const bool is_end = i == found.tokens.size();
    const Tokens newest = i == 0 ? guarded.prompt : Tokens{found.tokens[i - 1]};
    step(plain, newest, i == 0, logits);
    step(low, newest, i == 0, low_logits);
    const std::int32_t shadow = sampler->pick(logits);
    const double kld = divergence(logits, low_logits);
    if (!is_end) {
      EXPECT_EQ(found.shadows[i].token, shadow) << i;
      EXPECT_NEAR(found.shadows[i].kld, kld, 1e-6 + 1e-3 * kld);
    }
    differing += shadow != (is_end ? kEnd : found.tokens[i]) ? 1 : 0;
    sum += kld;
  }
  EXPECT_EQ(found.guard->differing, differing);
  EXPECT_NEAR(found.guard->kld_sum, sum, 1e-5 + 1e-3 * sum);
  EXPECT_EQ(several->status().counters.guard.tokens, found.guard->tokens);
}

// A guard must not report the rounding of transforms as a loss.
TEST_P(SchedulerOnEngine, AGuardFindsNoDifferenceBeforeAPageIsSealed) {
  const auto served = testing::plan_for(recipe(), engine_->geometry(), nullptr, backend_->page_order());
  const Recipe& r = served->recipe;
  if (guard_recipe(*served).k.transforms != r.k.transforms)
    GTEST_SKIP() << "the guard's cache lacks the constants of the recipe's transforms";
  if (served->tail->name() != "bf16" || r.softmax != Softmax::exact || r.products != Products::real)
    GTEST_SKIP() << "the recipe approximates attention to unsealed tokens";
  auto guarded = request(random_tokens(40, 1), 30, 1);
  guarded.guard = true;
  const Reply reply = ask(*scheduler(), {guarded}).front();
  ASSERT_TRUE(reply.guard);
  EXPECT_GT(reply.guard->tokens, 0);
  EXPECT_EQ(reply.guard->differing, 0);
  EXPECT_EQ(reply.guard->kld_sum, 0);
}

}  // namespace
}  // namespace kvant::scheduler_engine_test
