#include "serve/scheduler_memory.h"

#include <gtest/gtest.h>

#include "cache/cache_fixture.h"
#include "cache/device_layout.h"
#include "cache/testing/host_pages.h"
#include "eval/cache_size.h"

namespace kvant {
namespace {

constexpr std::int64_t kMemory = std::int64_t{64} << 20;

SchedulerOptions options_of(const PlacedPlan& plan) {
  SchedulerOptions options{
      .context = 1000, .parallel = 64, .prompt_step = 64, .lone_prompt_step = 1024, .memory = kMemory};
  set_sequence_bytes(plan, options);
  return options;
}

// With many short conversations, most memory would be unusable if each conversation counted the tail of a
// long prompt step.
TEST(SchedulerMemory, CountsTheTailOfAStepOnceForAllOnADevice) {
  const auto plan = place_on(std::make_shared<testing::HostPages>(),
                             testing::plan_for("k=ch4g64,v=tok4g64", testing::small_geometry()))
                        .value();
  const SchedulerOptions options = options_of(plan);
  const std::int64_t fit = Scheduler::sequences_that_fit(options), one = options.sequence_bytes(1000);
  const auto needed = [&](std::int64_t n) {
    return Scheduler::memory_for(options, static_cast<int>(n), n * one);
  };
  EXPECT_LE(needed(fit), kMemory);
  EXPECT_GT(needed(fit + 1), kMemory);
  EXPECT_GT(3 * fit, 4 * (kMemory / largest_cache_bytes(plan, 1000)));
  EXPECT_EQ(needed(1), Scheduler::memory_for(largest_cache_bytes(plan, 1000, largest_step(options))));
}

// In host memory, a tail grows only as far as it is filled, so a step needs no extra bytes.
TEST(SchedulerMemory, CountsNothingForStepsInHostMemory) {
  const auto plan = testing::plan_for("k=ch4g64,v=tok4g64", testing::small_geometry());
  const SchedulerOptions options = options_of(plan);
  EXPECT_EQ(options.step_bytes(64), 0);
  EXPECT_EQ(options.sequence_bytes(700), largest_cache_bytes(plan, 700));
}

}  // namespace
}  // namespace kvant
