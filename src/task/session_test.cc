#include "task/session.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>

#include "attention/device_backend.h"
#include "cache/testing/host_pages.h"
#include "model/tiny_model.h"
#include "recipe/recipe.h"

namespace kvant {
namespace {

constexpr std::int64_t kMib = std::int64_t{1} << 20;

TEST(DeviceMemory, KeepsAReserveForAModelsSteps) {
  const testing::HostPages device(/*limit=*/1536 * kMib);
  EXPECT_TRUE(check_device_memory(device, "a KV cache of 100 tokens", 512 * kMib).ok());
  const Status refused = check_device_memory(device, "a KV cache of 101 tokens", 512 * kMib + 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_TRUE(refused.error().is_shortage);
  for (const char* words : {"a KV cache of 101 tokens", "the host has", "need", "use a smaller context"})
    EXPECT_NE(refused.error().message.find(words), std::string::npos) << refused.error().message;
  EXPECT_FALSE(check_device_memory(testing::HostPages(/*limit=*/kMib), "a KV cache of 1 tokens", 1).ok());
}

TEST(HostMemory, IsShortIfATaskNeedsMoreThanTheMachineHas) {
  EXPECT_TRUE(check_memory("a small cache", 1).ok());
  const Status refused = check_memory("a large cache", INT64_MAX);
  ASSERT_FALSE(refused.ok());
  EXPECT_TRUE(refused.error().is_shortage);
}

TEST(SessionPlan, NothingIsLearnedForWhatADeviceCantServe) {
  const auto model = write_tiny_model({});
  const std::string folder = model->path() + ".cache";
  setenv("XDG_CACHE_HOME", folder.c_str(), 1);
  const auto session =
      Session::open({.model = model->path(), .backend = "reference"}, WeightMode::as_stored, /*context=*/0);
  ASSERT_TRUE(session.ok());
  const auto backend = make_device_backend(std::make_shared<testing::HostPages>());
  const auto plan = session->plan(parse_recipe("million-4bit").value(), "", backend.get());
  unsetenv("XDG_CACHE_HOME");
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.error().message.find("K in pq-d2b8"), std::string::npos) << plan.error().message;
  EXPECT_FALSE(std::filesystem::exists(folder));
}

}  // namespace
}  // namespace kvant
