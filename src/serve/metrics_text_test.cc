#include "serve/metrics_text.h"

#include <gtest/gtest.h>

#include <regex>
#include <sstream>

#include "base/heap.h"

namespace kvant {
namespace {

std::string text_of(const SchedulerStatus& status, bool compares = false) {
  const ServerInfo info{
      .model = "a \"model\"", .recipe = "kvant-4bit", .bits = 4.5, .kernels = {"cpu/x", "cpu/y"}};
  const ServerInfo other{.model = "b", .recipe = "kivi-2bit", .bits = 2.5};
  const SchedulerOptions options{.context = 2048, .memory = 1000};
  std::vector<RecipeMetrics> recipes = {{info, options, status}};
  if (compares) recipes.push_back({other, options, {}});
  return metrics_text(recipes);
}

TEST(MetricsText, IsWhatPrometheusReads) {
  const std::regex line(R"(# (HELP|TYPE) kvant_\w+ .+|kvant_\w+(\{(\w+="([^"\\]|\\.)*",?)*\})? [0-9.e+-]+)");
  for (const bool compares : {false, true}) {
    SchedulerStatus status;
    status.prefix_disk = PrefixDiskStatus{.files = 2, .bytes = 100, .limit = 200};
    std::istringstream lines(text_of(status, compares));
    int n = 0;
    for (std::string text; std::getline(lines, text); ++n) EXPECT_TRUE(std::regex_match(text, line)) << text;
    EXPECT_GT(n, 60);
  }
}

// Each name must come once, followed by the values of both recipes.
TEST(MetricsText, TellsRecipesApart) {
  SchedulerStatus status;
  status.counters.prefix_hits = 3;
  const std::string text = text_of(status, /*compares=*/true);
  EXPECT_NE(text.find("# TYPE kvant_prefix_hits_total counter\n"
                      "kvant_prefix_hits_total{recipe=\"kvant-4bit\"} 3\n"
                      "kvant_prefix_hits_total{recipe=\"kivi-2bit\"} 0\n"),
            std::string::npos);
  EXPECT_NE(text.find("kvant_requests_total{end=\"failed\",recipe=\"kivi-2bit\"} 0\n"), std::string::npos);
}

// The heap belongs to the process, so its metric must come once whatever the number of recipes.
TEST(MetricsText, HasOneHeapForAllRecipes) {
  const std::regex line("kvant_heap_bytes.blocks=\"(small|large)\". [0-9]+\n");
  for (const bool compares : {false, true}) {
    const std::string text = text_of({}, compares);
    const auto n =
        std::distance(std::sregex_iterator(text.begin(), text.end(), line), std::sregex_iterator());
    EXPECT_EQ(n, heap_bytes() ? 2 : 0);
  }
}

TEST(MetricsText, CountsDurationsBelowEachBound) {
  SchedulerStatus status;
  for (const double seconds : {0.002, 0.02, 0.02, 100.0}) status.counters.next_token.add(seconds);
  const std::string text = text_of(status);
  const auto has = [&](const std::string& line) {
    return text.find("\n" + line + "\n") != std::string::npos;
  };
  EXPECT_TRUE(has("kvant_next_token_seconds_bucket{le=\"0.001\"} 0"));
  EXPECT_TRUE(has("kvant_next_token_seconds_bucket{le=\"0.0025\"} 1"));
  EXPECT_TRUE(has("kvant_next_token_seconds_bucket{le=\"0.025\"} 3"));
  EXPECT_TRUE(has("kvant_next_token_seconds_bucket{le=\"60\"} 3"));
  EXPECT_TRUE(has("kvant_next_token_seconds_bucket{le=\"+Inf\"} 4"));
  EXPECT_TRUE(has("kvant_next_token_seconds_count 4"));
  EXPECT_TRUE(has("kvant_cache_limit_bytes 1000"));
}

}  // namespace
}  // namespace kvant
