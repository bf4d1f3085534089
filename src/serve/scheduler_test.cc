#include "serve/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/page_size.h"
#include "model/tiny_model.h"
#include "serve/serve_fixture.h"

namespace kvant::scheduler_test {
namespace {

using testing::FakeEngine;
using testing::kFakeVocabulary;
using testing::NoBackend;
using Tokens = std::vector<std::int32_t>;

constexpr std::int64_t kMuch = std::int64_t{1} << 30;

Tokens prompt_of(int n, int seed = 1) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<std::int32_t> token(1, kFakeVocabulary - 2);
  Tokens tokens(n);
  for (std::int32_t& t : tokens) t = token(random);
  return tokens;
}

struct Reply {
  std::map<int, std::string> texts;  // texts by the number of the completion
  std::map<int, GenerationEnd> ends;
  std::optional<Error> failure;
  TokenUsage usage;
  bool closed = false;
};

Reply read_all(AnswerStream& stream) {
  Reply reply;
  AnswerPart part;
  while (true) {
    const AnswerStream::Next next = stream.read(std::chrono::milliseconds(0), part);
    if (next == AnswerStream::Next::nothing_yet) return reply;
    if (next == AnswerStream::Next::closed) break;
    reply.texts[part.answer] += part.text;
    if (part.end != GenerationEnd::none) reply.ends[part.answer] = part.end;
  }
  reply.closed = true;
  reply.failure = stream.failure();
  reply.usage = stream.usage();
  return reply;
}

// Bench runs a scheduler over the fake engine.
class Bench {
 public:
  explicit Bench(SchedulerOptions options = {}, const std::string& recipe = "kvant-3bit",
                 const Geometry& geometry = testing::small_geometry(/*head_dim=*/16))
      : engine_(geometry) {
    if (options.context == 0) options.context = 2048;
    if (options.memory == 0) options.memory = kMuch;
    if (!options.sequence_bytes) options.sequence_bytes = [](int n) { return std::int64_t{n} * 512; };
    auto made = Scheduler::make(engine_, backend_, testing::plan_for(recipe, engine_.geometry()), options);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    scheduler_ = std::move(*made);
  }

  Scheduler& scheduler() { return *scheduler_; }
  FakeEngine& engine() { return engine_; }

  std::shared_ptr<AnswerStream> submit(GenerationRequest request) {
    auto stream = std::make_shared<AnswerStream>();
    refusal = scheduler_->submit(std::move(request), stream);
    return stream;
  }
  void run() {
    for (int steps = 0; !scheduler_->idle(); ++steps) {
      ASSERT_LT(steps, 100000);
      scheduler_->step();
    }
  }
  Reply ask(GenerationRequest request) {
    const auto stream = submit(std::move(request));
    run();
    return read_all(*stream);
  }

  std::optional<Refusal> refusal;

 private:
  FakeEngine engine_;
  NoBackend backend_;
  std::unique_ptr<Scheduler> scheduler_;
};

GenerationRequest request(Tokens prompt, int max_tokens, const std::string& client = "") {
  GenerationRequest request{.prompt = std::move(prompt), .client = client};
  request.sampling = {.temperature = 1, .seed = 7};
  request.generation.max_tokens = max_tokens;
  return request;
}

// The test computes the expected probabilities by a softmax over the fake engine's logits.
TEST(Scheduler, EchoesThePromptWithItsProbabilities) {
  Bench bench({.parallel = 2});
  const Tokens prompt = prompt_of(300);
  EXPECT_TRUE(bench.ask(request(prompt, 1)).closed);  // this keeps the prefix, without probabilities
  for (const int max_tokens : {0, 3}) {
    GenerationRequest echo = request(prompt, max_tokens);
    echo.echo = echo.generation.wants_probabilities = true;
    echo.generation.alternatives = 2;
    echo.n_answers = 2;
    const auto stream = bench.submit(echo);
    bench.run();
    std::map<int, std::vector<ReportedToken>> tokens;
    std::map<int, std::string> texts;
    std::map<int, GenerationEnd> ends;
    AnswerPart part;
    while (stream->read(std::chrono::milliseconds(0), part) == AnswerStream::Next::part) {
      tokens[part.answer].insert(tokens[part.answer].end(), part.tokens.begin(), part.tokens.end());
      texts[part.answer] += part.text;
      ends[part.answer] = part.end;
    }
    ASSERT_EQ(tokens.size(), 2U);
    for (const auto& [answer, reported] : tokens) {
      ASSERT_EQ(reported.size(), prompt.size() + max_tokens);
      EXPECT_EQ(texts[answer].size(), prompt.size() + max_tokens);
      EXPECT_EQ(ends[answer], GenerationEnd::length);
      EXPECT_TRUE(std::isnan(reported[0].chosen.log_probability));
      for (std::size_t i = 1; i < reported.size(); ++i) {
        std::vector<float> logits(kFakeVocabulary);
        FakeEngine::fill(logits.data(), static_cast<int>(i), reported[i - 1].chosen.token);
        double sum = 0;
        for (const float logit : logits) sum += std::exp(logit);
        const std::int32_t token = reported[i].chosen.token;
        if (i < prompt.size()) {
          EXPECT_EQ(token, prompt[i]);
        }
        ASSERT_NEAR(reported[i].chosen.log_probability, logits[token] - std::log(sum), 1e-4) << i;
        ASSERT_EQ(reported[i].alternatives.size(), 2U);
        ASSERT_EQ(reported[i].alternatives[0].token, std::ranges::max_element(logits) - logits.begin());
      }
    }
  }
}

TEST(Scheduler, EchoesThePromptAlone) {
  Bench bench;
  GenerationRequest echo = request(prompt_of(200), 2);
  echo.echo = true;
  const Reply given = bench.ask(echo);
  echo.text = "as it came";
  EXPECT_EQ(bench.ask(echo).texts.at(0), "as it came" + given.texts.at(0).substr(200));
  EXPECT_GT(bench.ask(echo).usage.cached, 0);
}

TEST(Scheduler, ReadsAPromptWithoutGenerating) {
  Bench bench;
  const Reply reply = bench.ask(request(prompt_of(20), 0));
  EXPECT_TRUE(reply.closed);
  EXPECT_EQ(reply.texts.at(0), "");
  EXPECT_EQ(reply.ends.at(0), GenerationEnd::length);
  EXPECT_EQ(reply.usage.prompt, 20);
  EXPECT_EQ(reply.usage.generated, 0);
}

// All completions start with the same logits, and penalties must count only a completion's own tokens.
TEST(Scheduler, EachChoiceCountsItsOwnPenalties) {
  Bench bench({.parallel = 3});
  GenerationRequest several = request(prompt_of(20), 40);
  several.sampling = {.temperature = 0};
  several.sampling.penalties = {.presence = 50, .repeat = 1};
  several.n_answers = 3;
  const Reply reply = bench.ask(several);
  ASSERT_EQ(reply.texts.size(), 3U);
  EXPECT_EQ(reply.texts.at(0), reply.texts.at(1));
  EXPECT_EQ(reply.texts.at(0), reply.texts.at(2));
  several.n_answers = 1;
  EXPECT_EQ(bench.ask(several).texts.at(0), reply.texts.at(0));
}

TEST(Scheduler, PromptsOfOneRequestCountOnceInTheQueue) {
  Bench bench({.parallel = 1, .queue = 1});
  std::vector<std::shared_ptr<AnswerStream>> streams = {bench.submit(request(prompt_of(9), 5))};
  for (int i = 0; i < 20; ++i) {
    GenerationRequest prompt = request(prompt_of(5, i), 3);
    prompt.follows = i > 0;
    streams.push_back(bench.submit(std::move(prompt)));
    EXPECT_FALSE(bench.refusal) << i;
  }
  bench.submit(request(prompt_of(4), 3));
  ASSERT_TRUE(bench.refusal.has_value());
  EXPECT_EQ(bench.refusal->reason, Refusal::Reason::busy);
  bench.run();
  for (const auto& stream : streams) EXPECT_TRUE(read_all(*stream).closed);
}

TEST(Scheduler, AnswersSeveralAtATimeAsEachAlone) {
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 12; ++i) requests.push_back(request(prompt_of(40 * i + 3, i), 20 + i));
  Bench together({.parallel = 5});
  std::vector<std::shared_ptr<AnswerStream>> streams;
  for (const GenerationRequest& r : requests) streams.push_back(together.submit(r));
  together.run();
  for (int i = 0; i < 12; ++i) {
    const Reply expected = Bench().ask(requests[i]);
    const Reply reply = read_all(*streams[i]);
    ASSERT_TRUE(reply.closed && !reply.failure) << i;
    EXPECT_EQ(reply.texts, expected.texts) << i;
    EXPECT_EQ(reply.texts.at(0).size(), 20U + i);
    EXPECT_EQ(reply.ends.at(0), GenerationEnd::length);
    EXPECT_EQ(reply.usage.prompt, 40 * i + 3);
    EXPECT_EQ(reply.usage.generated, 20 + i);
  }
  EXPECT_EQ(together.scheduler().status().counters.finished, 12);
}

TEST(Scheduler, ReadsABoundedPartOfAPromptBesideRunningAnswers) {
  Bench bench({.prompt_step = 64});
  const auto running = bench.submit(request(prompt_of(10), 200));
  bench.scheduler().step();
  const auto reading = bench.submit(request(prompt_of(1000, 2), 5));
  const std::size_t before = bench.engine().steps.size();
  int decoded = 0;
  while (read_all(*reading).texts.empty()) {
    bench.scheduler().step();
    ASSERT_LT(bench.engine().steps.size(), before + 100);
  }
  for (std::size_t i = before; i < bench.engine().steps.size(); ++i) {
    EXPECT_LE(bench.engine().steps[i].prompt_tokens, 64 + 31);
    decoded += bench.engine().steps[i].decoded;
  }
  EXPECT_GE(decoded, 1000 / 64);  // the running completion must have got a token in every step
}

TEST(Scheduler, ReadsABoundedPartOfAPromptBesideAnotherRecipesAnswers) {
  Bench bench;
  bench.submit(request(prompt_of(1000), 5));
  bench.scheduler().step(/*others_wait=*/true);
  EXPECT_LE(bench.engine().steps.back().prompt_tokens, bench.scheduler().options().prompt_step + 31);
  bench.scheduler().step();
  EXPECT_GT(bench.engine().steps.back().prompt_tokens, 300);
}

TEST(Scheduler, LetsAShortPromptPassALongOne) {
  Bench bench({.prompt_step = 64, .lone_prompt_step = 128});
  const auto long_one = bench.submit(request(prompt_of(2000), 3));
  const auto short_one = bench.submit(request(prompt_of(20, 2), 3));
  for (int i = 0; i < 5; ++i) bench.scheduler().step();
  EXPECT_TRUE(read_all(*short_one).closed);
  EXPECT_TRUE(read_all(*long_one).texts.empty());
  bench.run();
  EXPECT_TRUE(read_all(*long_one).closed);
}

TEST(Scheduler, MakesSeveralAnswersToAPromptThatIsReadOnce) {
  GenerationRequest three = request(prompt_of(300), 12);
  three.n_answers = 3;
  Bench bench;
  const Reply reply = bench.ask(three);
  ASSERT_EQ(reply.texts.size(), 3U);
  EXPECT_EQ(bench.scheduler().status().counters.prompt_tokens, 300);
  EXPECT_EQ(reply.usage.generated, 36);
  for (int i = 0; i < 3; ++i) {
    GenerationRequest one = request(prompt_of(300), 12);
    one.sampling.seed += i;
    EXPECT_EQ(Bench().ask(one).texts.at(0), reply.texts.at(i)) << i;
  }
  EXPECT_NE(reply.texts.at(0), reply.texts.at(1));
}

TEST(Scheduler, GoesOnFromAnEarlierPromptThatBeganAlike) {
  for (const char* recipe : {"kvant-3bit", "kivi-2bit"}) {
    Bench bench({}, recipe);
    const Tokens first = prompt_of(600);
    Tokens second(first.begin(), first.begin() + 550);
    second.insert(second.end(), 100, 5);
    const Reply before = bench.ask(request(first, 10));
    EXPECT_EQ(before.usage.cached, 0);
    EXPECT_EQ(bench.ask(request(first, 10)).usage.cached, 512) << recipe;
    EXPECT_EQ(bench.ask(request(first, 10)).texts, before.texts) << recipe;
    // If a recipe's sequences cannot be cut, the second prompt must keep the prefix at which the prompts
    // diverge. A third prompt then uses that prefix.
    const Reply miss = Bench({}, recipe).ask(request(second, 10));
    EXPECT_EQ(bench.ask(request(second, 10)).texts, miss.texts);
    Tokens third(first.begin(), first.begin() + 300);
    third.insert(third.end(), 200, 9);
    bench.ask(request(third, 10));
    third.back() = 8;
    third[350] = 8;
    EXPECT_EQ(bench.ask(request(third, 10)).usage.cached, 256) << recipe;
  }
}

TEST(Scheduler, DropsWhatIsCancelledWithinAStep) {
  Bench bench({.parallel = 2});
  std::vector<std::shared_ptr<AnswerStream>> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(bench.submit(request(prompt_of(60, i), 1000)));
  for (int i = 0; i < 4; ++i) bench.scheduler().step();
  EXPECT_EQ(bench.scheduler().status().requests.size(), 3U);
  EXPECT_GT(bench.scheduler().cache().bytes().all(), 0);
  for (const auto& stream : streams) stream->cancel();
  bench.scheduler().step();
  EXPECT_TRUE(bench.scheduler().idle());
  EXPECT_EQ(bench.scheduler().cache().bytes().all(), 0);  // no whole page was read, so no prefix is kept
  EXPECT_EQ(bench.scheduler().status().promised_bytes, 0);
  EXPECT_EQ(bench.scheduler().status().counters.cancelled, 3);
}

TEST(Scheduler, DropsAPromptThatIsCancelledWhileItIsRead) {
  Bench bench({.lone_prompt_step = 64});
  const auto stream = bench.submit(request(prompt_of(100), 1000));
  bench.scheduler().step();
  EXPECT_EQ(bench.scheduler().status().requests.at(0).state, JobState::reading);
  stream->cancel();
  bench.scheduler().step();
  EXPECT_TRUE(bench.scheduler().idle());
  EXPECT_EQ(bench.scheduler().cache().bytes().all(), 0);
}

TEST(Scheduler, LetsRequestsWaitAndRefusesMore) {
  Bench bench({.parallel = 1, .queue = 2});
  std::vector<std::shared_ptr<AnswerStream>> streams;
  streams.push_back(bench.submit(request(prompt_of(10), 5)));
  bench.scheduler().step();
  for (int i = 0; i < 2; ++i) streams.push_back(bench.submit(request(prompt_of(10, i), 5)));
  EXPECT_FALSE(bench.refusal);
  bench.submit(request(prompt_of(10), 5));
  ASSERT_TRUE(bench.refusal);
  EXPECT_EQ(bench.refusal->reason, Refusal::Reason::busy);
  EXPECT_GE(bench.refusal->retry_seconds, 1);
  bench.run();
  for (const auto& stream : streams) EXPECT_FALSE(read_all(*stream).failure);
}

TEST(Scheduler, NeedsNoQueueForWhatFindsRoom) {
  Bench bench({.parallel = 2, .queue = 0});
  for (int i = 0; i < 3; ++i) {
    bench.submit(request(prompt_of(10), 5));
    EXPECT_EQ(bench.refusal.has_value(), i == 2) << i;
  }
  bench.run();
}

TEST(Scheduler, RefusesWhatCanNeverBeServed) {
  Bench bench({.context = 512, .parallel = 4});
  const auto refused = [&](const GenerationRequest& r) {
    bench.submit(r);
    return bench.refusal && bench.refusal->reason == Refusal::Reason::wrong &&
           !bench.refusal->message.empty();
  };
  EXPECT_TRUE(refused(request({}, 5)));
  EXPECT_FALSE(refused(request(prompt_of(512), 5)));
  EXPECT_EQ(bench.refusal->reason, Refusal::Reason::too_long);
  EXPECT_EQ(bench.refusal->prompt_tokens, 512);
  EXPECT_EQ(bench.refusal->context, 512);
  EXPECT_FALSE(refused(request(prompt_of(511), 5)));
  GenerationRequest five = request(prompt_of(5), 5);
  five.n_answers = 5;
  EXPECT_TRUE(refused(five));
  GenerationRequest cold = request(prompt_of(5), 5);
  cold.sampling.temperature = -1;
  EXPECT_TRUE(refused(cold));
  EXPECT_EQ(bench.scheduler().status().counters.refused, 4);
}

TEST(Scheduler, CutsAnAnswerAtTheEndOfTheContext) {
  Bench bench({.context = 100});
  const Reply reply = bench.ask(request(prompt_of(90), -1));
  EXPECT_EQ(reply.usage.generated, 10);
  EXPECT_EQ(reply.ends.at(0), GenerationEnd::length);
}

// Returns options whose memory has room only for the sequences of running requests, so kept prefixes always
// have to go.
SchedulerOptions with_little_memory(const std::string& recipe,
                                    const Geometry& geometry = testing::small_geometry(/*head_dim=*/16)) {
  Cache measured(testing::plan_for(recipe, geometry), 0);
  const SequenceId sequence = measured.add();
  EXPECT_TRUE(testing::append_tokens(measured, sequence, 1024).ok());
  const double per_token = static_cast<double>(measured.bytes(sequence).all()) / 1024;
  SchedulerOptions options{.context = 1024, .parallel = 6};
  options.sequence_bytes = [=](int n) { return static_cast<std::int64_t>(per_token * (n + 256)); };
  options.memory = 2 * options.sequence_bytes(1024) + 32 * static_cast<std::int64_t>(kSlabBytes);
  return options;
}

TEST(Scheduler, StaysWithinItsMemoryAndLosesNothing) {
  for (const char* recipe : {"kvant-3bit", "kivi-2bit", "bf16"}) {
    const SchedulerOptions options = with_little_memory(recipe);
    Bench bench(options, recipe);
    std::vector<std::shared_ptr<AnswerStream>> streams;
    for (int i = 0; i < 40; ++i)
      streams.push_back(bench.submit(request(prompt_of(100 + 97 * i % 800, i), 30, i % 2 == 0 ? "a" : "b")));
    while (!bench.scheduler().idle()) {
      bench.scheduler().step();
      ASSERT_LE(bench.scheduler().status().cache_bytes, options.memory);
      ASSERT_LE(bench.scheduler().status().promised_bytes, options.memory);
    }
    for (int i = 0; i < 40; ++i) {
      const Reply reply = read_all(*streams[i]);
      ASSERT_TRUE(reply.closed && !reply.failure)
          << recipe << i << (reply.failure ? reply.failure->message : "");
      EXPECT_EQ(reply.usage.generated, 30);
    }
    EXPECT_GT(bench.scheduler().status().prefixes, 0) << recipe;
  }
}

// Every prompt comes twice, but the memory cannot keep its prefix until the second time.
TEST(Scheduler, ReadsBeginningsBackFromTheDiskWithinItsMemory) {
  const TinyFile folder("prefixes");
  const Geometry geometry = testing::small_geometry(/*head_dim=*/128, /*n_heads=*/8, /*n_kv_heads=*/8, 4);
  SchedulerOptions options = with_little_memory("bf16", geometry);
  options.context = 700;
  options.memory = 2 * options.sequence_bytes(700) + 32 * static_cast<std::int64_t>(kSlabBytes);
  const auto plan = testing::plan_for("bf16", geometry);
  options.prefix_folder = SessionFolder::open(folder.path(), session_identity(*plan, "one", "")).value();
  options.prefix_disk = 1 << 30;
  auto bench = std::make_unique<Bench>(options, "bf16", geometry);
  constexpr int kPrompts = 10;
  for (int i = 0; i < 2 * kPrompts; ++i) {
    const auto stream = bench->submit(request(prompt_of(520 + 13 * (i % kPrompts), i % kPrompts), 10));
    while (!bench->scheduler().idle()) {
      bench->scheduler().step();
      ASSERT_LE(bench->scheduler().status().cache_bytes, options.memory);
    }
    const Reply reply = read_all(*stream);
    ASSERT_TRUE(reply.closed && !reply.failure) << i;
    EXPECT_EQ(reply.usage.generated, 10);
    if (i < kPrompts) continue;
    EXPECT_EQ(reply.usage.cached, (reply.usage.prompt - 1) / kPageTokens * kPageTokens) << i;
  }
  const SchedulerStatus status = bench->scheduler().status();
  EXPECT_GT(status.prefixes_dropped, kPrompts);
  EXPECT_GT(status.prefix_disk->hits, kPrompts / 2);
  EXPECT_EQ(status.prefix_disk->failures, 0);
  bench.reset();
  std::filesystem::remove_all(folder.path());
}

TEST(Scheduler, FailsOnlyTheRequestThatBreaksTheModel) {
  const GenerationRequest good = request(prompt_of(50, 2), 30);
  const Reply expected = Bench().ask(good);
  Bench bench;
  bench.engine().poison = testing::kFakeUnsaid;
  Tokens bad = prompt_of(50);
  bad[20] = testing::kFakeUnsaid;
  const auto unreadable = bench.submit(request(bad, 30));
  const auto undecodable = bench.submit(request(prompt_of(50, 3), 30));
  bench.engine().broken = 1;
  const auto whole = bench.submit(good);
  bench.run();
  EXPECT_EQ(read_all(*unreadable).failure.value().message, "token 63 breaks the model");
  EXPECT_EQ(read_all(*undecodable).failure.value().message, "sequence 1 is broken");
  EXPECT_EQ(read_all(*whole).texts, expected.texts);
  EXPECT_EQ(bench.scheduler().status().counters.failed, 2);
  EXPECT_EQ(bench.scheduler().cache().bytes().all(), 0);
}

TEST(Scheduler, NeedsMemoryForOneSequence) {
  FakeEngine engine(testing::small_geometry());
  NoBackend backend;
  SchedulerOptions options{.context = 1000, .memory = 1 << 20};
  options.sequence_bytes = [](int n) { return std::int64_t{n} * 4096; };
  const auto made = Scheduler::make(engine, backend, testing::plan_for("bf16", engine.geometry()), options);
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().message.find("1000 tokens"), std::string::npos);
}

GenerationRequest guarded(int n_prompt, int max_tokens) {
  GenerationRequest request{.prompt = prompt_of(n_prompt), .guard = true};
  request.generation.max_tokens = max_tokens;
  return request;
}

SchedulerOptions with_guard(std::int64_t shadow_memory) {
  SchedulerOptions options;
  options.shadow_plan = testing::plan_for("bf16", testing::small_geometry(/*head_dim=*/16));
  options.shadow_memory = shadow_memory;
  options.shadow_bytes = [](int n) { return std::int64_t{n} * 1024; };
  return options;
}

// The fake engine's logits depend only on the tokens, so the shadow must choose the completion's tokens.
TEST(GuardedAnswers, EndWithTheirShadows) {
  Bench bench(with_guard(16 << 20));
  const auto one = bench.submit(guarded(300, 20)), cancelled = bench.submit(guarded(200, 500));
  for (int i = 0; i < 12; ++i) bench.scheduler().step();
  cancelled->cancel();
  bench.run();
  const Reply reply = read_all(*one);
  ASSERT_TRUE(reply.usage.guard);
  EXPECT_EQ(reply.usage.guard->tokens, 20);
  EXPECT_EQ(reply.usage.guard->differing, 0);
  EXPECT_NEAR(reply.usage.guard->kld_sum, 0, 1e-9);
}

TEST(GuardedAnswers, WaitForMemoryOfTheirOwn) {
  Bench bench(with_guard((4 << 20) + 1000 * 1024));
  const auto first = bench.submit(guarded(300, 500)), second = bench.submit(guarded(300, 500));
  GenerationRequest plain = guarded(300, 20);
  plain.guard = false;
  const auto other = bench.submit(plain);
  EXPECT_EQ(bench.scheduler().status().running_answers, 1);
  bench.run();
  for (const auto& stream : {first, second, other}) EXPECT_FALSE(read_all(*stream).failure);
}

TEST(GuardedAnswers, AreRefusedWhereTheyCantBe) {
  Bench without;
  without.submit(guarded(10, 10));
  EXPECT_TRUE(without.refusal);
  Bench bench(with_guard((4 << 20) + 1000 * 1024));
  bench.submit(guarded(300, 800));
  ASSERT_TRUE(bench.refusal);
  EXPECT_NE(bench.refusal->message.find("max_tokens"), std::string::npos);
  GenerationRequest two = guarded(10, 10);
  two.n_answers = 2;
  bench.submit(two);
  EXPECT_TRUE(bench.refusal);
}

}  // namespace
}  // namespace kvant::scheduler_test
