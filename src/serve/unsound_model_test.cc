// Tests a model whose logits are not numbers. All requests must fail, and the error must name the cause.
#include <gtest/gtest.h>

#include "cache/cache_fixture.h"
#include "model/tiny_model.h"
#include "serve/read_reply.h"
#include "serve/scheduler.h"
#include "serve/scheduler_memory.h"

namespace kvant::unsound_model_test {
namespace {

TEST(UnsoundModel, FailsRequestsByASentence) {
  TinyModel model{.n_layers = 1};
  model.damaged = "output_norm.weight";
  const auto file = write_tiny_model(model);
  const auto engine = Engine::load(file->path(), {.n_threads = 1}).value();
  const auto backend = make_cpu_backend();
  const auto plan = testing::plan_for("bf16", engine->geometry(), nullptr, backend->page_order());
  SchedulerOptions options{.context = 1024, .parallel = 2, .memory = 64 << 20};
  set_sequence_bytes(plan, options);
  const auto scheduler = Scheduler::make(*engine, *backend, plan, options).value();
  GenerationRequest request{.prompt = {1, 40, 41}, .sampling = {.temperature = 1}};
  request.generation = {.max_tokens = 5};
  const auto replies = testing::ask(*scheduler, {request, request});
  for (const testing::ReadReply& reply : replies) {
    EXPECT_NE(reply.failure.find("not numbers"), std::string::npos) << reply.failure;
    EXPECT_EQ(reply.text, "");
  }
}

}  // namespace
}  // namespace kvant::unsound_model_test
