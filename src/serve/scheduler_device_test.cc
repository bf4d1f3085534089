// Tests what the scheduler puts into a step if the cache is on a device. The engine has no model.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "cache/device_layout.h"
#include "cache/testing/host_pages.h"
#include "model/random_tokens.h"
#include "serve/read_reply.h"
#include "serve/scheduler.h"
#include "serve/serve_fixture.h"

namespace kvant {
namespace {

using testing::FakeEngine;
using testing::NoBackend;
using testing::random_tokens;
using testing::read_reply;

// CountingPages counts copies between the host and the device, and on the device.
class CountingPages final : public testing::HostPages {
 public:
  void upload(void* to, const void* from, std::size_t bytes) override {
    ++copies["upload"];
    HostPages::upload(to, from, bytes);
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    ++copies["download"];
    HostPages::download(to, from, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    ++copies["copy"];
    HostPages::copy(to, from, bytes);
  }
  void copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                 std::size_t row_bytes, std::size_t n_rows) override {
    ++copies["copy_rows"];
    HostPages::copy_rows(to, to_stride, from, from_stride, row_bytes, n_rows);
  }
  Status finish() override {
    ++copies["finish"];
    return HostPages::finish();
  }

  std::map<std::string, int> copies;
};

GenerationRequest fake_request(int n_prompt, int max_tokens) {
  GenerationRequest request{.prompt = random_tokens(n_prompt, n_prompt)};
  for (std::int32_t& token : request.prompt) token = 1 + token % (testing::kFakeVocabulary - 2);
  request.sampling = {.temperature = 1, .seed = 7};
  request.generation.max_tokens = max_tokens;
  return request;
}

class SchedulerOnDevice : public ::testing::Test {
 protected:
  SchedulerOnDevice() : engine_(testing::small_geometry(/*head_dim=*/64)) {}

  void start(SchedulerOptions options) {
    pages_ = std::make_shared<CountingPages>();
    const auto plan = place_on(pages_, testing::plan_for("k=ch4g128,v=tok4g128,sink=4", engine_.geometry()));
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    options.context = 4096;
    options.memory = std::int64_t{1} << 30;
    options.sequence_bytes = [](int n) { return std::int64_t{n} * 512; };
    const auto shadows = place_on(plan->device(), testing::plan_for("bf16", engine_.geometry()));
    options.shadow_plan = shadows.value();
    options.shadow_bytes = options.sequence_bytes;
    options.shadow_memory = std::int64_t{1} << 30;
    scheduler_ = Scheduler::make(engine_, backend_, *plan, options).value();
  }
  std::shared_ptr<AnswerStream> submit(GenerationRequest request) {
    auto stream = std::make_shared<AnswerStream>();
    EXPECT_FALSE(scheduler_->submit(std::move(request), stream));
    return stream;
  }
  void run() {
    while (!scheduler_->idle()) scheduler_->step();
  }
  const std::vector<FakeEngine::StepRecord>& steps() const { return engine_.steps; }

  FakeEngine engine_;
  NoBackend backend_;
  std::shared_ptr<CountingPages> pages_;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(SchedulerOnDevice, ReadsPromptsInTheStepsOfAnswers) {
  start({.prompt_step = 64});
  const auto first = submit(fake_request(40, 200));
  const auto second = submit(fake_request(30, 200));
  scheduler_->step();
  ASSERT_EQ(steps().size(), 1U);
  EXPECT_EQ(steps()[0].prompt_tokens, 70);
  const auto long_one = submit(fake_request(1000, 5));
  while (read_reply(*long_one).parts.empty()) {
    scheduler_->step();
    EXPECT_EQ(steps().back().decoded, 2);
    EXPECT_GE(steps().back().prompt_tokens, 32);
    EXPECT_LE(steps().back().prompt_tokens, 64 + 31);
    ASSERT_LT(steps().size(), 40U);
  }
  EXPECT_EQ(scheduler_->status().counters.prompt_tokens, 1070);
  run();
  EXPECT_EQ(scheduler_->status().counters.finished, 3);
}

TEST_F(SchedulerOnDevice, GivesSlicesOfAStepToAllPrompts) {
  start({.lone_prompt_step = 512});
  const auto long_one = submit(fake_request(2000, 3));
  const auto short_one = submit(fake_request(60, 3)), other = submit(fake_request(2001, 3));
  scheduler_->step();
  ASSERT_EQ(steps().size(), 1U);
  EXPECT_FALSE(read_reply(*short_one).parts.empty());
  for (const RequestStatus& status : scheduler_->status().requests)
    EXPECT_GE(status.read_tokens, status.prompt_tokens == 60 ? 60 : 128) << status.prompt_tokens;
  run();
  EXPECT_EQ(scheduler_->status().counters.finished, 3);
}

TEST_F(SchedulerOnDevice, ReadsOnBesideWhatFails) {
  start({.prompt_step = 64, .lone_prompt_step = 512});
  const auto answer = submit(fake_request(50, 40));
  scheduler_->step();
  engine_.poison = testing::kFakeUnsaid;
  GenerationRequest poisoned = fake_request(45, 5);
  poisoned.prompt[44] = testing::kFakeUnsaid;
  const auto fails = submit(std::move(poisoned)), reads = submit(fake_request(300, 6));
  run();
  EXPECT_NE(read_reply(*fails).failure.find("breaks the model"), std::string::npos);
  EXPECT_EQ(scheduler_->status().counters.finished, 2);
  EXPECT_EQ(scheduler_->status().counters.failed, 1);
  EXPECT_EQ(scheduler_->status().counters.generated_tokens, 46);
}

TEST(SchedulerMemory, KeepsRoomForALongStepOnce) {
  SchedulerOptions options{.context = 100, .memory = std::int64_t{1} << 30};
  options.sequence_bytes = [](int n) { return std::int64_t{n} << 20; };
  const std::int64_t without = Scheduler::sequences_that_fit(options);
  options.step_bytes = [](int /*n_seqs*/) { return std::int64_t{300} << 20; };
  EXPECT_EQ(Scheduler::sequences_that_fit(options), without - 3);
}

// A guard's shadow reads the prompt before the request does, and running completions wait for both.
TEST_F(SchedulerOnDevice, ReadsForShadowsWhatAnswersCanWaitFor) {
  start({.prompt_step = 128, .answer_pause = 1e-9});
  submit(fake_request(40, 200));
  scheduler_->step();
  GenerationRequest guarded = fake_request(3000, 2);
  guarded.guard = true;
  submit(std::move(guarded));
  std::vector<int> read;
  for (std::size_t seen = steps().size(); read.size() < 4; seen = steps().size()) {
    scheduler_->step();
    ASSERT_EQ(steps().size(), seen + 2);  // the two steps are the shadow's and the completion's
    read.push_back(steps()[seen].prompt_tokens);
  }
  EXPECT_EQ(read.front(), 128);
  EXPECT_EQ(read.back(), 32);
}

// Drafts are looked for on the host. If no pair of tokens repeats, there is no draft, and the device must get
// the same steps as without drafts.
TEST_F(SchedulerOnDevice, AStepWithoutADraftIsThatOfAServerWithoutDrafts) {
  constexpr int kTokens = 40;
  GenerationRequest request = fake_request(20, kTokens);
  for (int i = 0; i < 20; ++i) request.prompt[i] = 1 + i;
  request.sampling = {.temperature = 0};
  std::vector<std::int32_t> whole = request.prompt;
  std::vector<float> logits(testing::kFakeVocabulary);
  while (std::ssize(whole) < 20 + kTokens) {
    FakeEngine::fill(logits.data(), static_cast<int>(whole.size()), whole.back());
    whole.push_back(static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin()));
  }
  std::set<std::pair<std::int32_t, std::int32_t>> pairs;
  for (std::size_t i = 1; i < whole.size(); ++i)
    ASSERT_TRUE(pairs.emplace(whole[i - 1], whole[i]).second) << "the pair that ends at " << i << " repeats";

  std::vector<std::vector<FakeEngine::StepRecord>> records;
  std::vector<std::map<std::string, int>> copies;
  for (const int most_drafted : {0, 15}) {
    engine_.steps.clear();
    start({.most_drafted = most_drafted});
    submit(request);
    run();
    EXPECT_EQ(scheduler_->status().counters.generated_tokens, kTokens);
    records.push_back(steps());
    copies.push_back(pages_->copies);
    scheduler_.reset();
  }
  EXPECT_EQ(std::ssize(records[0]), kTokens);
  EXPECT_EQ(records[0], records[1]);
  EXPECT_EQ(copies[0], copies[1]);
}

// The fake engine's steps take more than 1e-9 seconds and less than an hour, so the results with the two
// limits are predictable.
TEST_F(SchedulerOnDevice, ReadsWhatAnswersCanWaitFor) {
  for (const double pause : {1e-9, 3600.0}) {
    engine_.steps.clear();
    start({.prompt_step = 128, .lone_prompt_step = 512, .answer_pause = pause});
    submit(fake_request(40, 200));
    scheduler_->step();
    submit(fake_request(3000, 2));
    for (int i = 0; i < 6; ++i) scheduler_->step();
    EXPECT_EQ(steps()[1].prompt_tokens, 128);
    EXPECT_EQ(steps().back().prompt_tokens, pause < 1 ? 32 : 512);
    scheduler_.reset();
  }
}

}  // namespace
}  // namespace kvant
