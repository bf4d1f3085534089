// Tests only: answers of a scheduler on a tiny model whose weights are random: it says anything.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cache/cache_fixture.h"
#include "eval/cache_size.h"
#include "model/tiny_model.h"
#include "recipe/plan.h"
#include "serve/scheduler.h"

namespace kvant::testing {

// Of one answer.
struct ReadReply {
  std::string text;
  GenerationEnd end = GenerationEnd::none;
  std::vector<ReportedToken> tokens;
  std::string failure;
  std::vector<AnswerPart> parts;
};

inline ReadReply read_reply(AnswerStream& stream) {
  ReadReply reply;
  AnswerPart part;
  while (stream.read(std::chrono::milliseconds(0), part) == AnswerStream::Next::part) {
    reply.text += part.text;
    reply.end = part.end;
    reply.tokens.insert(reply.tokens.end(), part.tokens.begin(), part.tokens.end());
    reply.parts.push_back(part);
  }
  if (stream.failure()) reply.failure = stream.failure()->message;
  return reply;
}

class TinyScheduler : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto file = write_tiny_model({.n_layers = 1});
    engine_ = Engine::load(file->path(), {.n_threads = 1}).value().release();
  }
  static void TearDownTestSuite() { delete engine_; }

  std::vector<ReadReply> ask(const std::vector<GenerationRequest>& requests) {
    const auto plan = plan_for("kvant-4bit", engine_->geometry(), nullptr, backend_->page_order());
    SchedulerOptions options{.context = 1024, .parallel = 8, .memory = 256 << 20};
    options.sequence_bytes = [plan](int n) { return largest_cache_bytes(*plan, n); };
    options.grammar_seconds = grammar_seconds_;
    const auto scheduler = Scheduler::make(*engine_, *backend_, plan, options).value();
    std::vector<std::shared_ptr<AnswerStream>> streams;
    for (const GenerationRequest& r : requests) {
      streams.push_back(std::make_shared<AnswerStream>());
      EXPECT_FALSE(scheduler->submit(r, streams.back()));
    }
    while (!scheduler->idle()) scheduler->step();
    std::vector<ReadReply> replies;
    for (const auto& stream : streams) replies.push_back(read_reply(*stream));
    return replies;
  }

  double grammar_seconds_ = 60;  // whatever runs beside a test
  static inline Engine* engine_ = nullptr;
  std::unique_ptr<AttentionBackend> backend_ = make_cpu_backend();
};

}  // namespace kvant::testing
