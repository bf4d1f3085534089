// Runs completions of a scheduler on a tiny model with random weights, for tests. The completions have
// arbitrary texts.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "cache/cache_fixture.h"
#include "model/tiny_model.h"
#include "recipe/plan.h"
#include "serve/read_reply.h"
#include "serve/scheduler.h"
#include "serve/scheduler_memory.h"

namespace kvant::testing {

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
    set_sequence_bytes(plan, options);
    options.grammar_seconds = grammar_seconds_;
    const auto scheduler = Scheduler::make(*engine_, *backend_, plan, options).value();
    return testing::ask(*scheduler, requests);
  }

  double grammar_seconds_ = 60;  // seconds; long enough on a busy machine
  static inline Engine* engine_ = nullptr;
  std::unique_ptr<AttentionBackend> backend_ = make_cpu_backend();
};

}  // namespace kvant::testing
