#include "serve/cache_json.h"

#include <gtest/gtest.h>

#include "serve/serve_fixture.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;
using testing::FakeEngine;
using testing::NoBackend;

// K has 4 bits by channel, V has 2 bits by token, and KV head 1 of layer 0 is BF16. The page sizes follow
// from the formats' definitions for a page of 128 tokens with d = 16.
constexpr int kLayers = 2, kHeads = 2, kDim = 16;
constexpr std::int64_t kKeyPage = 128 * kDim / 2 + kDim * 4;   // codes and two f16 values per channel
constexpr std::int64_t kValuePage = 128 * kDim / 4 + 128 * 4;  // codes and two f16 values per token
constexpr std::int64_t kPlainPage = 128 * kDim * 2;
constexpr const char* kRecipe = "k=ch4g128,v=tok2g128,k@0.1=bf16,v@0.1=bf16,sink=4";

class CacheJson : public ::testing::Test {
 protected:
  CacheJson() {
    SchedulerOptions options{.context = 2048, .parallel = 3, .memory = 1 << 30};
    options.sequence_bytes = [](int n) { return std::int64_t{n} * 512; };
    const auto plan = testing::plan_for(kRecipe, engine_.geometry());
    info_ = {.model = "m", .recipe = "r", .bits = 5, .grid = cache_grid(*plan, backend_)};
    scheduler_ = Scheduler::make(engine_, backend_, plan, options).value();
  }
  void submit(int n, int max_tokens) {
    GenerationRequest request{.prompt = std::vector<std::int32_t>(n, 7)};
    request.generation.max_tokens = max_tokens;
    streams_.push_back(std::make_shared<AnswerStream>());
    ASSERT_FALSE(scheduler_->submit(std::move(request), streams_.back()));
  }
  void run() {
    while (!scheduler_->idle()) scheduler_->step();
  }
  Json json() const { return cache_json(info_, scheduler_->options(), view_cache(*scheduler_)); }

  FakeEngine engine_{testing::small_geometry(kDim, /*n_heads=*/4, kHeads, kLayers)};
  NoBackend backend_;
  ServerInfo info_;
  std::vector<std::shared_ptr<AnswerStream>> streams_;
  std::unique_ptr<Scheduler> scheduler_;
};

std::int64_t sum(const Json& numbers) {
  std::int64_t total = 0;
  for (const Json& n : numbers) total += n.get<std::int64_t>();
  return total;
}

// Returns the newest sequence that serves a request.
const Json& running_sequence(const Json& view) {
  const Json* newest = nullptr;
  for (const Json& s : view["sequences"]) {
    if (s.contains("request")) newest = &s;
  }
  KVANT_CHECK(newest != nullptr, "no request runs");
  return *newest;
}

TEST_F(CacheJson, SaysHowEachLayerHeadAndSideIsStored) {
  const Json plan = json()["plan"];
  ASSERT_EQ(plan["k"].size(), kLayers * kHeads);
  ASSERT_EQ(plan["v"].size(), kLayers * kHeads);
  const auto page_bytes = [&](const char* side, int cell) -> std::int64_t {
    return plan["formats"][plan[side][cell].get<int>()]["page_bytes"];
  };
  for (const int cell : {0, 2, 3}) {
    EXPECT_EQ(page_bytes("k", cell), kKeyPage);
    EXPECT_EQ(page_bytes("v", cell), kValuePage);
  }
  EXPECT_EQ(page_bytes("k", 1), kPlainPage);
  EXPECT_EQ(page_bytes("v", 1), kPlainPage);
  ASSERT_EQ(plan["formats"].size(), 3U);
  EXPECT_EQ(plan["formats"][0]["format"], "bf16");  // the formats are sorted by falling bits
  EXPECT_DOUBLE_EQ(plan["formats"][1]["bits"], 8.0 * kKeyPage / (128 * kDim));
  EXPECT_EQ(plan["tail"], "bf16");
}

TEST_F(CacheJson, CountsTheBytesOfARunningSequence) {
  submit(300, 100);
  while (engine_.steps.empty() || engine_.steps.back().decoded == 0) scheduler_->step();
  const Json view = json();
  const Json& running = running_sequence(view);
  EXPECT_EQ(running["state"], "generating");
  EXPECT_EQ(running["prompt_tokens"], 300);
  // Prefill gives the first token, and the step after prefill gives the second.
  EXPECT_EQ(running["generated_tokens"], 2);
  EXPECT_EQ(running["tokens"], 301);
  EXPECT_EQ(running["bf16_bytes"], 301 * kLayers * kHeads * 2 * kDim * 2);
  // 45 tokens in steps of 16 take space for 48; the sink has 4 tokens.
  const std::int64_t unsealed = (48 + 4) * kDim * 2;
  const std::vector<std::int64_t> k(
      {2 * kKeyPage + unsealed, 2 * kPlainPage + unsealed, 2 * kKeyPage + unsealed, 2 * kKeyPage + unsealed});
  EXPECT_EQ(running["k_bytes"].get<std::vector<std::int64_t>>(), k);
  EXPECT_EQ(running["bytes"]["sealed"], 3 * 2 * (kKeyPage + kValuePage) + 2 * 2 * kPlainPage);
  EXPECT_EQ(running["bytes"]["sink"], kLayers * kHeads * 2 * 4 * kDim * 2);
  EXPECT_EQ(running["bytes"]["tail"], kLayers * kHeads * 2 * 48 * kDim * 2);
  // The prefix cache holds the two whole pages, too, so they are shared.
  EXPECT_EQ(running["pages"].dump(),
            R"([{"kind":"sealed","shared":true,"n":2},{"kind":"tail","shared":false,"n":1}])");
}

TEST_F(CacheJson, CountsSharedPagesOnce) {
  submit(300, 100);
  submit(300, 100);
  for (int i = 0; i < 4; ++i) scheduler_->step();
  const Json view = json();
  std::int64_t all = 0;
  for (const Json& s : view["sequences"]) all += sum(s["k_bytes"]) + sum(s["v_bytes"]);
  EXPECT_EQ(
      view["memory"]["pages"].get<std::int64_t>() + view["memory"]["saved_by_sharing"].get<std::int64_t>(),
      all);
  EXPECT_EQ(view["tokens"]["cached"], 256);
  EXPECT_EQ(running_sequence(view)["cached_tokens"], 256);
  // Both requests and the prefix cache share two pages of each side and the sink's page.
  EXPECT_GE(view["memory"]["saved_by_sharing"], 2 * (3 * 2 * (kKeyPage + kValuePage) + 2 * 2 * kPlainPage));
}

TEST_F(CacheJson, ShowsWhatIsKeptAfterAnAnswer) {
  submit(300, 3);
  run();
  const Json view = json();
  ASSERT_EQ(view["sequences"].size(), 1U);
  EXPECT_EQ(view["sequences"][0]["state"], "kept");
  EXPECT_EQ(view["sequences"][0]["tokens"], 256);
  EXPECT_FALSE(view["sequences"][0].contains("request"));
  EXPECT_EQ(view["tokens"]["generated"], 3);
  EXPECT_EQ(view["memory"]["saved_by_sharing"], 0);
}

}  // namespace
}  // namespace kvant
