#include "bench/attention_bench.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "bench/attention_report.h"
#include "bench/median.h"
#include "bench/rest.h"

namespace kvant {
namespace {

// Reports the seconds that the test gives, and records the order of calls.
class Scripted final : public AttentionContender {
 public:
  Scripted(std::string name, std::vector<double> seconds, std::string& calls)
      : name_(std::move(name)), seconds_(std::move(seconds)), calls_(calls) {}
  Result<double> layer_seconds() override {
    calls_ += name_ + " ";
    if (seconds_[run_] < 0) return error("{} fails", name_);
    return seconds_[run_++];
  }
  double layer_bytes() const override { return 1000; }
  double bits() const override { return 4.5; }
  int n_layers() const override { return 7; }
  std::vector<std::string> kernels() const override { return {"scripted"}; }

 private:
  std::string name_;
  // The first number is the warm-up's. A negative number makes the run fail.
  std::vector<double> seconds_;
  std::string& calls_;
  std::size_t run_ = 0;
};

AttentionEntry entry(const std::string& name, const std::vector<double>& seconds, std::string& calls) {
  return {name, [=, &calls](int context) -> Result<std::unique_ptr<AttentionContender>> {
            calls += name + std::to_string(context) + " ";
            return std::unique_ptr<AttentionContender>(std::make_unique<Scripted>(name, seconds, calls));
          }};
}

constexpr int kContexts[] = {64, 128};

TEST(AttentionBench, InterleavesContendersAndTakesMediansWithoutTheWarmUp) {
  std::string calls;
  const AttentionEntry entries[] = {entry("a", {99, 2, 100, 4}, calls), entry("b", {99, 1, 1, 50}, calls)};
  int units = 0;
  const auto rows = run_attention_bench(entries, kContexts, 3, [&](int n) { units += n; });
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(calls, "a64 b64 a b a b a b a b a128 b128 a b a b a b a b ");
  EXPECT_EQ(units, attention_bench_units(2, 2, 3));
  ASSERT_EQ(rows->size(), 4U);
  EXPECT_EQ((*rows)[1].name, "b");
  EXPECT_EQ((*rows)[1].context, 64);
  EXPECT_EQ((*rows)[2].context, 128);
  EXPECT_DOUBLE_EQ((*rows)[0].seconds, 4);
  EXPECT_DOUBLE_EQ((*rows)[1].seconds, 1);
  EXPECT_DOUBLE_EQ(read_speed((*rows)[0]), 250);
}

// Records when each run begins.
class Timed final : public AttentionContender {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Timed(std::vector<Clock::time_point>& begins) : begins_(begins) {}
  Result<double> layer_seconds() override {
    begins_.push_back(Clock::now());
    return 1.0;
  }
  double layer_bytes() const override { return 1000; }
  double bits() const override { return 4.5; }
  int n_layers() const override { return 7; }
  std::vector<std::string> kernels() const override { return {"scripted"}; }

 private:
  std::vector<Clock::time_point>& begins_;
};

TEST(AttentionBench, RestsBeforeEachContender) {
  std::vector<Timed::Clock::time_point> begins;
  const AttentionEntry entry = {"a", [&](int) -> Result<std::unique_ptr<AttentionContender>> {
                                  return std::unique_ptr<AttentionContender>(std::make_unique<Timed>(begins));
                                }};
  const AttentionEntry entries[] = {entry, entry};
  ASSERT_TRUE(run_attention_bench(entries, std::span(kContexts, 1), 2, [](int) {}).ok());
  ASSERT_EQ(begins.size(), 6U);
  for (std::size_t i = 1; i < begins.size(); ++i) EXPECT_GE(begins[i] - begins[i - 1], kRest);
}

TEST(AttentionBench, StopsAtTheFirstError) {
  std::string calls;
  const AttentionEntry entries[] = {entry("a", {1, 1}, calls), entry("b", {-1}, calls)};
  const auto rows = run_attention_bench(entries, kContexts, 1, [](int) {});
  ASSERT_FALSE(rows.ok());
  EXPECT_EQ(rows.error().message, "b fails");
}

TEST(AttentionReport, ComparesWithTheFastestRivalThatStoresAtLeastAsManyBits) {
  const std::vector<AttentionRow> rows = {{"x", 4096, 4.5, 3, 2e-3, 4e6, {"reference"}},
                                          {"y", 4096, 4.6, 3, 2e-3, 4e6, {"reference"}},
                                          {"z", 4096, 16.5, 3, 2e-3, 4e6, {"reference"}},
                                          {"ggml:f16", 4096, 16, 2, 8e-3, 16e6, {"ggml/flash"}},
                                          {"ggml:f16-plain", 4096, 16, 2, 6e-3, 16e6, {"ggml/plain"}},
                                          {"ggml:q4_0", 4096, 4.5, 2, 3e-3, 4e6, {"ggml/flash"}},
                                          {"x", 8192, 4.5, 3, 4e-3, 8e6, {"reference"}},
                                          {"ggml:f16", 8192, 16, 2, 4e-3, 32e6, {"ggml/flash"}}};
  const AttentionSettings settings{{32, 8, 128}, 2, 10, 50e9};
  const auto json = nlohmann::json::parse(attention_to_json(rows, settings));
  EXPECT_EQ(json["schema"], "kvant.bench.attention/2");
  EXPECT_DOUBLE_EQ(json["read_gbps"].get<double>(), 50);
  EXPECT_EQ(json["kv_heads"], 8);
  const auto& results = json["results"];
  const auto& first = results[0];
  EXPECT_EQ(first["recipe"], "x");
  EXPECT_EQ(first["ctx"], 4096);
  EXPECT_DOUBLE_EQ(first["us"].get<double>(), 2000);
  EXPECT_DOUBLE_EQ(first["gbps"].get<double>(), 2);
  EXPECT_DOUBLE_EQ(first["read_percent"].get<double>(), 4);
  EXPECT_DOUBLE_EQ(first["limit_us"].get<double>(), 80);
  EXPECT_EQ(first["rival"], "ggml:q4_0");
  EXPECT_DOUBLE_EQ(first["ratio"].get<double>(), 1.5);
  // q4_0 stores fewer bits than "y".
  EXPECT_EQ(results[1]["rival"], "ggml:f16-plain");
  EXPECT_DOUBLE_EQ(results[1]["ratio"].get<double>(), 3);
  // Both caches count as unquantized, although the tail of "z" has free slots.
  EXPECT_EQ(results[2]["rival"], "ggml:f16-plain");
  EXPECT_DOUBLE_EQ(results[2]["ratio"].get<double>(), 6e-3 / results[2]["us"].get<double>() * 1e6);
  EXPECT_DOUBLE_EQ(results[3]["ratio"].get<double>(), 0.75);
  EXPECT_DOUBLE_EQ(results[5]["ratio"].get<double>(), 1);
  // The rival must have the context of the row.
  EXPECT_EQ(results[6]["rival"], "ggml:f16");
  EXPECT_DOUBLE_EQ(results[6]["ratio"].get<double>(), 1);
  const std::string table = attention_table(rows, settings);
  EXPECT_NE(table.find("2000.0      80.0    2.00     4.0    1.50x  ggml:q4_0\n"), std::string::npos) << table;
}

TEST(Median, IsTheMiddleOrBetweenTheMiddleTwo) {
  EXPECT_EQ(median({5}), 5);
  EXPECT_EQ(median({9, 1, 2}), 2);
  EXPECT_EQ(median({8, 1, 4, 2}), 3);
}

}  // namespace
}  // namespace kvant
