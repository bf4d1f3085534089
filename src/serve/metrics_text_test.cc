#include "serve/metrics_text.h"

#include <gtest/gtest.h>

#include <regex>
#include <sstream>

namespace kvant {
namespace {

std::string text_of(const SchedulerStatus& status) {
  const ServerInfo info{
      .model = "a \"model\"", .recipe = "kvant-4bit", .bits = 4.5, .kernels = {"cpu/x", "cpu/y"}};
  return metrics_text(info, {.context = 2048, .memory = 1000}, status);
}

TEST(MetricsText, IsWhatPrometheusReads) {
  const std::regex line(R"(# (HELP|TYPE) kvant_\w+ .+|kvant_\w+(\{(\w+="([^"\\]|\\.)*",?)*\})? [0-9.e+-]+)");
  std::istringstream lines(text_of({}));
  int n = 0;
  for (std::string text; std::getline(lines, text); ++n) EXPECT_TRUE(std::regex_match(text, line)) << text;
  EXPECT_GT(n, 60);
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
