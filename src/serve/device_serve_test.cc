// Tests the scheduler with a model and caches on a device. The device is host memory (model/host_device.h),
// so the test needs no GPU.
#include <gtest/gtest.h>

#include <filesystem>

#include "attention/device_backend.h"
#include "cache/cache_fixture.h"
#include "eval/cache_size.h"
#include "model/host_device.h"
#include "model/random_tokens.h"
#include "model/tiny_model.h"
#include "serve/read_reply.h"
#include "serve/scheduler.h"
#include "serve/scheduler_memory.h"

namespace kvant {
namespace {

using testing::random_tokens;
using testing::ReadReply;
using Tokens = std::vector<std::int32_t>;

// Returns a request that takes the likeliest token at each position.
GenerationRequest request(Tokens prompt, int max_tokens) {
  GenerationRequest request{.prompt = std::move(prompt), .sampling = {.temperature = 0}};
  request.generation = {.max_tokens = max_tokens, .wants_probabilities = true};
  return request;
}

// Server holds an engine with its backend and scheduler, on a device or on the CPU.
struct Server {
  std::unique_ptr<AttentionBackend> backend;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Scheduler> scheduler;

  std::vector<ReadReply> ask(const std::vector<GenerationRequest>& requests) const {
    std::vector<ReadReply> replies = testing::ask(*scheduler, requests);
    for (const ReadReply& reply : replies) EXPECT_EQ(reply.failure, "");
    return replies;
  }
};

struct ServedModel {
  const char* name;
  TinyModel (*model)();
};
constexpr ServedModel kPlain{"", [] { return TinyModel{}; }}, kHybrid{"_hybrid", tiny_hybrid},
    kWindowed{"_windowed", tiny_windowed};

// The parameters are a recipe and a tiny model.
class DeviceServe : public ::testing::TestWithParam<std::tuple<const char*, ServedModel>> {
 protected:
  DeviceServe() : file_("served.gguf") {
    TinyModelWriter(std::get<1>(GetParam()).model()).write(file_.path());
  }
  static std::string recipe() { return std::get<0>(GetParam()); }

  // `sessions` is a folder. If the name is empty, sessions are not kept.
  Server server(bool on_device, const std::string& sessions = "", std::int64_t memory = 256 << 20) const {
    const auto device = on_device ? std::make_shared<testing::HostDevice>() : nullptr;
    Server made;
    made.backend = on_device ? make_device_backend(device->pages()) : make_cpu_backend();
    made.engine = Engine::load(file_.path(), {.n_threads = 1, .device = device}).value();
    const std::string recipe = this->recipe() + (on_device ? "" : ",tail=bf16");
    const auto resolved =
        testing::plan_for(recipe, made.engine->geometry(), nullptr, made.backend->page_order());
    const PlacedPlan plan = made.backend->place(resolved).value();
    SchedulerOptions options{.context = 1024, .parallel = 4, .memory = memory};
    set_sequence_bytes(plan, options);
    if (on_device) {
      options.shadow_plan = made.backend->place(testing::plan_for("bf16", made.engine->geometry())).value();
      options.shadow_bytes = [shadow = options.shadow_plan](int n) { return largest_cache_bytes(shadow, n); };
      options.shadow_memory = Scheduler::memory_for(options.shadow_bytes(options.context));
    }
    std::shared_ptr<const SessionFolder> folder;
    if (!sessions.empty())
      folder = SessionFolder::open(sessions, session_identity(*plan, made.engine->fingerprint(), "")).value();
    made.scheduler = Scheduler::make(*made.engine, *made.backend, plan, options, folder).value();
    return made;
  }

  TinyFile file_;
};

INSTANTIATE_TEST_SUITE_P(Recipes, DeviceServe,
                         ::testing::Values(std::tuple{"bf16", kPlain}, std::tuple{"kvant-4bit", kPlain},
                                           std::tuple{"k=ch4g64,v=tok4g64,sink=20", kPlain},
                                           std::tuple{"k=ch4g64,v=tok2g64,sink=4,protect=0.1", kPlain},
                                           std::tuple{"kvant-4bit", kHybrid}, std::tuple{"bf16", kWindowed},
                                           std::tuple{"k=ch4g64,v=tok4g64,sink=20", kWindowed}),
                         [](const auto& info) {
                           return "Recipe" + std::to_string(info.index) + std::get<1>(info.param).name;
                         });

// Compares a completion with the completion that the same prompt gets alone. The size of a step changes how
// products are rounded, so the completions may diverge where two tokens are nearly equally likely. Returns
// the number of equal tokens before that point.
int expect_alike(const ReadReply& reply, int answer, const ReadReply& alone) {
  const auto chosen = [](const ReadReply& of, int number) {
    std::vector<TokenProbability> tokens;
    for (const AnswerPart& part : of.parts) {
      for (const ReportedToken& token : part.tokens) {
        if (part.answer == number) tokens.push_back(token.chosen);
      }
    }
    return tokens;
  };
  const auto found = chosen(reply, answer), expected = chosen(alone, 0);
  for (std::size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    EXPECT_NEAR(found[i].log_probability, expected[i].log_probability, 0.05) << "token " << i;
    if (found[i].token != expected[i].token) return static_cast<int>(i);
  }
  EXPECT_EQ(found.size(), expected.size());
  return static_cast<int>(found.size());
}

TEST_P(DeviceServe, AnswersSeveralAtATime) {
  std::vector<GenerationRequest> requests;
  for (const int n : {5, 129, 200, 290, 40, 128}) requests.push_back(request(random_tokens(n, n), 12));
  requests[1].n_answers = 2;
  const Server server = this->server(/*on_device=*/true);
  const std::vector<ReadReply> together = server.ask(requests);
  int n_same = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    const ReadReply alone = this->server(/*on_device=*/true).ask({requests[i]}).front();
    EXPECT_EQ(alone.tokens_of(0).size(), 12U);
    for (int answer = 0; answer < requests[i].n_answers; ++answer)
      n_same += expect_alike(together[i], answer, alone);
  }
  EXPECT_GT(n_same, 12 * 7 / 2);
  // Completions share steps, so there are fewer steps than tokens.
  EXPECT_LT(server.scheduler->status().counters.steps, 12 * 7);
}

TEST_P(DeviceServe, AnswersFromAKeptBeginning) {
  const auto first = request(random_tokens(400, 1), 5);
  auto next = first;
  for (const std::int32_t token : random_tokens(61, 2)) next.prompt.push_back(token);
  next.generation.max_tokens = 12;
  const Server kept = server(/*on_device=*/true);
  kept.ask({first});
  const ReadReply reply = kept.ask({next}).front();
  EXPECT_GE(reply.cached, 384);
  EXPECT_EQ(reply.tokens_of(0), server(/*on_device=*/true).ask({next}).front().tokens_of(0));
}

// The shadow sequence is a second cache on the device. If the recipe is unquantized, the shadow must agree
// with the completion.
TEST_P(DeviceServe, GuardsAnAnswer) {
  auto guarded = request(random_tokens(300, 1), 30);
  guarded.guard = true;
  const std::vector<ReadReply> replies =
      server(/*on_device=*/true).ask({request(random_tokens(90, 7), 40), guarded});
  guarded.guard = false;
  const ReadReply alone = server(/*on_device=*/true).ask({guarded}).front();
  expect_alike(replies[1], 0, alone);
  ASSERT_TRUE(replies[1].guard);
  const GuardTally& tally = *replies[1].guard;
  EXPECT_GE(tally.tokens, 20);
  if (recipe() == "bf16") {
    EXPECT_LT(tally.kld_sum, 1e-3 * tally.tokens);
    EXPECT_LE(tally.differing, 1);
  } else {
    EXPECT_GT(tally.kld_sum, 1e-5 * tally.tokens);
  }
}

// The memory holds only two of the longest conversations. All eight requests must succeed, so kept prefixes
// must be dropped.
TEST_P(DeviceServe, AdmitsWhatTheDeviceHasMemoryFor) {
  const Server measured = server(/*on_device=*/true);
  const std::int64_t one = largest_cache_bytes(
      measured.backend->place(testing::plan_for(recipe(), measured.engine->geometry())).value(), 1024);
  const Server tight = server(/*on_device=*/true, "", 2 * one + (8 << 20));
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 8; ++i) requests.push_back(request(random_tokens(900, i), 10));
  for (const ReadReply& reply : tight.ask(requests)) EXPECT_EQ(reply.tokens_of(0).size(), 10U);
  EXPECT_EQ(tight.scheduler->status().counters.failed, 0);
}

// A session that starts on the device must continue on the CPU without another prefill, and the other way
// round.
TEST_P(DeviceServe, SharesSessionsWithTheCpu) {
  for (const bool on_device : {false, true}) {
    const TinyFile folder("sessions");
    auto first = request(random_tokens(300, 1), 40);
    first.session = "chat";
    auto next = first;
    {
      const Server begins = server(on_device, folder.path());
      const ReadReply begun = begins.ask({first}).front();
      for (const std::int32_t token : begun.tokens_of(0)) next.prompt.push_back(token);
    }
    for (const std::int32_t token : random_tokens(70, 2)) next.prompt.push_back(token);
    const ReadReply reply = server(!on_device, folder.path()).ask({next}).front();
    EXPECT_GT(reply.cached, 310);
    EXPECT_GT(reply.tokens_of(0).size(), 20U);  // at most 40, because a completion may end by itself
    std::filesystem::remove_all(folder.path());
  }
}

}  // namespace
}  // namespace kvant
