// Tests `kvant bench` from a user's view: exit codes, messages and files.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/testing/cli.h"

namespace kvant::cli_test {
namespace {

TEST_F(Cli, BenchWritesItsSchema) {
  const std::string json_path = path("bench.json");
  const Outcome outcome = run_model("bench", {"--kv", "bf16,kivi-2bit", "-d", "1300,0", "-n", "2", "-p", "16",
                                              "-r", "1", "--against", "llama.cpp", "--json", json_path});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(read_file(json_path));
  EXPECT_EQ(json["schema"], "kvant.bench/1");
  ASSERT_EQ(json["results"].size(), 16U);
  EXPECT_EQ(json["results"][0]["depth"], 0);
  EXPECT_EQ(json["results"][11]["depth"], 1300);
  EXPECT_EQ(json["results"][11]["recipe"], "llama.cpp:f16-plain");
  for (const auto& row : json["results"]) {
    EXPECT_TRUE(row["decode_rival"].get<std::string>().starts_with("llama.cpp:")) << row;
    EXPECT_GT(row["prompt_tps"], 0.0);
    EXPECT_GT(row["decode_tps"], 0.0);
  }
}

TEST_F(Cli, BenchFillsCachesWithAText) {
  const std::string json_path = path("bench-text.json");
  const Outcome outcome =
      run_model("bench", {"--kv", "turbo3-sparse-v,llama.cpp:f16-plain", "-d", "300", "-n", "2", "-p", "0",
                          "-r", "1", "--file", path("text.txt"), "--json", json_path});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(read_file(json_path));
  EXPECT_EQ(json["cache_contents"], "text");
  ASSERT_EQ(json["results"].size(), 2U);
  for (const auto& row : json["results"]) EXPECT_GT(row["decode_tps"], 0.0);
  expect_user_error(run_model("bench", {"-d", "100000", "--file", path("text.txt")}), "smaller --depth");
  expect_user_error(run_model("bench", {"--kv", "llama.cpp:q4_0-plain"}), "q4_0/f16-plain");
}

TEST_F(Cli, BenchAttentionNeedsNoModelAndWritesItsSchema) {
  const std::string json_path = path("attention.json");
  const Outcome outcome =
      run({"bench", "attention", "--heads", "4", "--kv-heads", "2", "--dim", "64", "--ctx", "128,64", "--kv",
           "bf16,kvant-3bit", "-t", "1", "-r", "2", "-v", "--json", json_path});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("plan: "), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.out.find("kvant-3bit"), std::string::npos) << outcome.out;
  const auto json = nlohmann::json::parse(read_file(json_path));
  EXPECT_EQ(json["schema"], "kvant.bench.attention/2");
  EXPECT_GT(json["read_gbps"], 0.0);
  const auto& results = json["results"];
  const std::vector<std::string> names = {"bf16",           "kvant-3bit",         "ggml:f16",
                                          "ggml:f16-plain", "ggml:q8_0",          "ggml:q8_0-f16-plain",
                                          "ggml:q4_0",      "ggml:q4_0-f16-plain"};
  ASSERT_EQ(results.size(), 2 * names.size());
  EXPECT_EQ(results.front()["ctx"], 64);
  EXPECT_EQ(results.back()["ctx"], 128);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::string& name = names[i % names.size()];
    EXPECT_EQ(results[i]["recipe"], name);
    for (const char* figure : {"us", "gbps", "bits", "read_percent", "limit_us", "ratio"})
      EXPECT_GT(results[i][figure], 0.0) << name << " " << figure;
  }
  // The counterpart of bf16 is ggml's f16.
  EXPECT_TRUE(results[0]["rival"].get<std::string>().starts_with("ggml:f16"));
}

TEST_F(Cli, BenchAttentionLeavesOutWhatGgmlCannotStore) {
  const std::string json_path = path("attention80.json");
  const Outcome outcome = run({"bench", "attention", "--heads", "2", "--kv-heads", "2", "--dim", "80",
                               "--ctx", "128", "--kv", "q8_0", "-t", "1", "-r", "1", "--json", json_path});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("q4_0"), std::string::npos) << outcome.err;
  const auto json = nlohmann::json::parse(read_file(json_path));
  // The rows are q8_0 and ggml's f16 with each of two graphs.
  ASSERT_EQ(json["results"].size(), 3U);
}

TEST_F(Cli, BenchAttentionRefusesWhatCannotBe) {
  const auto refuses = [](std::vector<std::string> words, const std::string& part) {
    words.insert(words.begin(), {"bench", "attention", "-t", "1"});
    expect_user_error(run(words), part);
  };
  refuses({"--heads", "30", "--kv-heads", "8"}, "multiple of --kv-heads");
  refuses({"--dim", "100"}, "100");
  refuses({"--dim", "520"}, "520");
  refuses({"--ctx", "0"}, "--ctx");
  refuses({"--ctx", "16000000", "--heads", "1024", "--kv-heads", "1024"}, "needs");
  refuses({"--kv", "nonsense"}, "nonsense");
  refuses({"--kv", "llama.cpp:q4_0"}, "llama.cpp:q4_0");
  refuses({"--kv", "bf16,budget=3"}, "ladder");
  expect_user_error(run_model("bench", {"attention"}), "--model");
}

}  // namespace
}  // namespace kvant::cli_test
