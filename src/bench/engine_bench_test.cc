#include "bench/engine_bench.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvant::engine_bench_test {
namespace {

// Reports the seconds that the test gives, and records the order of calls.
class Scripted : public Contender {
 public:
  Scripted(std::string name, std::vector<double> seconds, std::string& calls)
      : name_(std::move(name)), seconds_(std::move(seconds)), calls_(calls) {}
  const std::string& name() const override { return name_; }
  double bits() const override { return 16; }
  Status fill(int depth) override {
    calls_ += name_ + "f" + std::to_string(depth) + " ";
    return {};
  }
  Result<double> prompt_seconds(int) override {
    calls_ += name_ + "p ";
    return seconds_[run_ % seconds_.size()];
  }
  Result<std::vector<double>> token_seconds(int n) override {
    calls_ += name_ + "d ";
    // The last token takes half of the time.
    std::vector<double> seconds(n, 0.5 / (n - 1));
    const double run = seconds_[run_++ % seconds_.size()];
    for (double& x : seconds) x *= run;
    seconds.back() = run / 2;
    return seconds;
  }

 private:
  std::string name_;
  std::vector<double> seconds_;
  std::string& calls_;
  std::size_t run_ = 0;
};

TEST(EngineBench, InterleavesContendersAndTakesMedians) {
  std::string calls;
  std::vector<std::unique_ptr<Contender>> contenders;
  contenders.push_back(std::make_unique<Scripted>("a", std::vector<double>{2.0, 100.0, 4.0}, calls));
  contenders.push_back(std::make_unique<Scripted>("b", std::vector<double>{1.0, 1.0, 50.0}, calls));
  BenchOptions options;
  options.depths = {64};
  options.prompt = 8;
  options.decode = 4;
  options.repeats = 3;
  int runs = 0;
  const auto rows = run_bench(contenders, options, [&](int n) { runs += n; });
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(calls, "af64 bf64 ap ad bp bd ap ad bp bd ap ad bp bd ");
  EXPECT_EQ(runs, 6);
  ASSERT_EQ(rows->size(), 2U);
  EXPECT_DOUBLE_EQ((*rows)[0].prompt_tps, 8 / 4.0);
  EXPECT_DOUBLE_EQ((*rows)[0].decode_tps, 4 / 4.0);
  EXPECT_DOUBLE_EQ((*rows)[1].decode_tps, 4 / 1.0);
  // The seconds are 1/6 six times, 1/2 twice, 25/3 three times and 25 once.
  EXPECT_DOUBLE_EQ((*rows)[1].token_p50, (1.0 / 6 + 0.5) / 2);
  EXPECT_DOUBLE_EQ((*rows)[1].token_max, 25.0);
  // The percentile lies at position 10.89 of 0 to 11.
  EXPECT_NEAR((*rows)[1].token_p99, 25.0 - 0.11 * (25.0 - 25.0 / 3), 1e-9);

  const auto json = nlohmann::json::parse(bench_to_json(*rows, options, "m.gguf", 2));
  EXPECT_EQ(json["schema"], "kvant.bench/1");
  EXPECT_EQ(json["results"][1]["recipe"], "b");
  EXPECT_EQ(json["results"][1]["depth"], 64);
  EXPECT_DOUBLE_EQ(json["results"][1]["decode_tps"].get<double>(), 4.0);
  EXPECT_DOUBLE_EQ(json["results"][1]["token_max"].get<double>(), 25.0);
}

TEST(EngineBench, LeavesOutWhatIsNotTimed) {
  std::string calls;
  std::vector<std::unique_ptr<Contender>> contenders;
  contenders.push_back(std::make_unique<Scripted>("a", std::vector<double>{1.0}, calls));
  BenchOptions options;
  options.prompt = 0;
  options.repeats = 1;
  const auto rows = run_bench(contenders, options, [](int) {});
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(calls, "af0 ad ");
  const auto json = nlohmann::json::parse(bench_to_json(*rows, options, "m", 1));
  EXPECT_TRUE(json["results"][0]["prompt_tps"].is_null());
  EXPECT_TRUE(json["results"][0]["prompt_ratio"].is_null());
}

TEST(EngineBench, ComparesWithTheFastestRivalThatStoresAtLeastAsManyBits) {
  const std::vector<BenchRow> rows = {{"x", 64, 4.5, 100, 50},
                                      {"y", 64, 5.0, 100, 50},
                                      {"z", 64, 16.5, 100, 50},
                                      {"llama.cpp:f16", 64, 16, 50, 10},
                                      {"llama.cpp:f16-plain", 64, 16, 40, 20},
                                      {"llama.cpp:q4_0", 64, 4.5, 30, 40},
                                      {"x", 128, 4.5, 10, 10},
                                      {"y", 128, 4.5, 10, 30}};
  const auto json = nlohmann::json::parse(bench_to_json(rows, {}, "m", 1));
  const auto& results = json["results"];
  EXPECT_EQ(results[0]["prompt_rival"], "llama.cpp:f16");
  EXPECT_DOUBLE_EQ(results[0]["prompt_ratio"].get<double>(), 2);
  EXPECT_EQ(results[0]["decode_rival"], "llama.cpp:q4_0");
  EXPECT_DOUBLE_EQ(results[0]["decode_ratio"].get<double>(), 1.25);
  // q4_0 stores fewer bits than "y".
  EXPECT_EQ(results[1]["decode_rival"], "llama.cpp:f16-plain");
  EXPECT_DOUBLE_EQ(results[1]["decode_ratio"].get<double>(), 2.5);
  // Both caches count as unquantized, although the tail of "z" has free slots.
  EXPECT_EQ(results[2]["decode_rival"], "llama.cpp:f16-plain");
  EXPECT_DOUBLE_EQ(results[5]["decode_ratio"].get<double>(), 1);
  // Without rows of llama.cpp, rows are compared with the first row.
  EXPECT_EQ(results[7]["decode_rival"], "x");
  EXPECT_DOUBLE_EQ(results[7]["decode_ratio"].get<double>(), 3);
  const std::string table = bench_table(rows);
  EXPECT_NE(table.find(" 2.00x llama.cpp:f16 "), std::string::npos) << table;
  EXPECT_NE(table.find(" 1.25x llama.cpp:q4_0 "), std::string::npos) << table;
}

}  // namespace
}  // namespace kvant::engine_bench_test
