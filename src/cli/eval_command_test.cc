// Tests `kvant eval` from a user's view: exit codes, messages and files.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/testing/cli.h"

namespace kvant::cli_test {
namespace {

TEST_F(Cli, EvalWritesItsSchema) {
  const std::string json_path = path("eval.json");
  const Outcome outcome = run_model("eval", {"-f", path("text.txt"), "-c", "256", "--chunks", "2", "--kv",
                                             "tok4g32s,llama.cpp:q8_0", "--control", "--json", json_path});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(read_file(json_path));
  EXPECT_EQ(json["schema"], "kvant.eval/2");
  EXPECT_EQ(json["context"], 256);
  EXPECT_EQ(json["chunks"], 2);
  ASSERT_EQ(json["results"].size(), 4U);
  EXPECT_EQ(json["results"][0]["recipe"], "bf16");
  EXPECT_EQ(json["results"][0]["kld_mean"], 0.0);
  EXPECT_EQ(json["results"][1]["recipe"], "tok4g32s");
  double bits =
      // The sum starts with the bits at 256 tokens. At fewer tokens, one page is quantized and the rest is
      // BF16 in steps of 16 tokens.
      4.5;
  for (int n = 129; n < 256; ++n) {
    const int bf16_tokens = (n - 128 + 15) / 16 * 16;
    bits += (128 * 4.5 + bf16_tokens * 16) / n;
  }
  EXPECT_NEAR(json["results"][1]["bits_all"].get<double>(), bits / 128, 1e-9);
  EXPECT_EQ(json["results"][3]["recipe"], "bf16 (steps of 128)");
  // The control row differs from the reference by rounding alone.
  EXPECT_LT(json["results"][3]["kld_mean"], 1e-4);
  for (const char* key :
       {"bits_sealed", "bits_all", "ppl", "kld_mean", "kld_lo", "kld_hi", "kld_median", "kld_p99", "kld_p999",
        "kld_max", "top1", "rms_dp", "seconds", "plan", "constant_bytes", "constant_bits"}) {
    for (const auto& row : json["results"]) EXPECT_TRUE(row.contains(key)) << key;
  }
}

TEST_F(Cli, EvalComparesWithAnyReference) {
  const std::string json_path = path("eval.json");
  const Outcome outcome = run_model(
      "eval", {"-f", path("text.txt"), "-c", "256", "--chunks", "1", "--kv",
               "tok4g32s,tok4g32s,skip=1e-30,bf16", "--reference", "tok4g32s", "--json", json_path});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(read_file(json_path));
  // The reference, which is also named as a candidate, does not run a second time.
  ASSERT_EQ(json["results"].size(), 3U);
  EXPECT_EQ(json["results"][0]["recipe"], "tok4g32s");
  // The threshold of the second row is too small to skip anything.
  EXPECT_LT(json["results"][1]["kld_mean"], 1e-7);
  EXPECT_GT(json["results"][2]["kld_mean"], 1e-5);
}

TEST_F(Cli, EvalLooksIntoLayers) {
  const std::string json_path = path("layers.json");
  const Outcome outcome = run_model("eval", {"-f", path("text.txt"), "-c", "256", "--chunks", "1", "--layers",
                                             "--kv", "tok4g32s,tok4g32s,skip=0.01", "--json", json_path});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("relative"), std::string::npos);
  const auto json = nlohmann::json::parse(read_file(json_path));
  EXPECT_EQ(json["schema"], "kvant.layers/1");
  ASSERT_EQ(json["results"].size(), 2U);
  EXPECT_GT(json["results"][0]["layers"][0]["mse"], 0.0);
  EXPECT_GT(json["results"][1]["layers"][0]["skip_rate"], 0.0);
  expect_user_error(
      run_model("eval", {"-f", path("text.txt"), "-c", "256", "--layers", "--kv", "llama.cpp:q8_0"}),
      "--layers");
}

TEST_F(Cli, EvalComparesBackends) {
  const std::string json_path = path("backends.json");
  // The best backend for this processor is in every build. A build for this machine alone has no other
  // kernels.
  const Outcome outcome =
      run_model("eval", {"-f", path("text.txt"), "-c", "256", "--chunks", "1", "--compare-backend", "cpu",
                         "--kv", "tok4g64", "--json", json_path});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(read_file(json_path));
  ASSERT_EQ(json["results"].size(), 2U);
  EXPECT_LT(json["results"][1]["kld_mean"], 0.01);
  EXPECT_GT(json["results"][1]["output_error"], 0.0);
  EXPECT_LT(json["results"][1]["output_error"], 0.005);
  expect_user_error(run_model("eval", {"-f", path("text.txt"), "-c", "256", "--compare-backend", "gpu"}),
                    "gpu");
  expect_user_error(
      run_model("eval", {"-f", path("text.txt"), "-c", "256", "--compare-backend", "cpu", "--control"}),
      "--control");
}

TEST_F(Cli, EvalRunsASuiteAsTheCommandLineSays) {
  const std::string json_path = path("suite.json");
  const Outcome outcome = run_model("eval", {"-f", path("text.txt"), "--suite", "search-groups", "-c",
                                             "256,128", "--chunks", "1", "--kv", "fp8", "--json", json_path});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("2 bits, groups of 32"), std::string::npos) << outcome.out;
  const auto json = nlohmann::json::parse(read_file(json_path));
  // The array has one document per context.
  ASSERT_EQ(json.size(), 2U);
  EXPECT_EQ(json[0]["suite"], "search-groups");
  EXPECT_EQ(json[0]["context"], 256);
  EXPECT_EQ(json[1]["context"], 128);
  ASSERT_EQ(json[0]["results"].size(), 1U + 9 + 1);
  EXPECT_EQ(json[0]["results"][1]["label"], "4 bits, groups of 32");
  EXPECT_EQ(json[0]["results"][10]["recipe"], "fp8");
  EXPECT_FALSE(json[0]["results"][10].contains("label"));
}

TEST_F(Cli, EvalAsksAboutDocuments) {
  const std::string json_path = path("retrieval.json");
  const Outcome outcome = run_model("eval", {"-f", path("text.txt"), "--retrieval", "-c", "2600", "--chunks",
                                             "1", "--kv", "tok4g32s", "--json", json_path});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(read_file(json_path));
  EXPECT_EQ(json["schema"], "kvant.retrieval/1");
  ASSERT_EQ(json["results"].size(), 2U);
  EXPECT_EQ(json["results"][0]["logp_change"], 0.0);
  EXPECT_NE(json["results"][1]["logp_change"], 0.0);
  expect_user_error(run_model("eval", {"-f", path("text.txt"), "--retrieval", "-c", "256"}), "too small");
}

TEST_F(Cli, EvalComparesGreedyGenerations) {
  const std::string json_path = path("greedy.json");
  write("prompts.jsonl", "{\"question\": \"abc\"}\n{\"question\": \"def\"}\n");
  const Outcome outcome = run_model("eval", {"-f", path("prompts.jsonl"), "--greedy", "-n", "20", "--kv",
                                             "bf16,sink=0;f16", "--json", json_path});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(read_file(json_path));
  EXPECT_EQ(json["schema"], "kvant.greedy/2");
  EXPECT_EQ(json["lengths"].size(), 2U);
  EXPECT_EQ(json["results"][0]["identical"], 1.0);
  EXPECT_EQ(json["results"][1]["recipe"], "f16");
  write("broken.jsonl", "{\"text\": 1}\n");
  expect_user_error(run_model("eval", {"-f", path("broken.jsonl"), "--greedy"}), "line 1");
}

TEST_F(Cli, EvalMeasuresDrift) {
  const std::string json_path = path("drift.json");
  write("prompts.jsonl", "{\"question\": \"abc\"}\n{\"question\": \"def\"}\n");
  const Outcome outcome = run_model("eval", {"-f", path("prompts.jsonl"), "--drift", "-n", "300", "--kv",
                                             "kivi-2bit", "--control", "--json", json_path});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(read_file(json_path));
  EXPECT_EQ(json["schema"], "kvant.drift/1");
  EXPECT_EQ(json["prompts"], 2);
  ASSERT_EQ(json["results"].size(), 3U);
  for (const auto& row : json["results"]) {
    ASSERT_EQ(row["blocks"].size(), 2U);
    EXPECT_EQ(row["blocks"][1]["first"], 256);
    EXPECT_EQ(row["blocks"][1]["count"], 44);
  }
  EXPECT_EQ(json["results"][0]["kld_mean"], 0.0);
  EXPECT_GT(json["results"][1]["kld_mean"], 1e-5);
  EXPECT_LT(json["results"][2]["kld_mean"], 1e-5);
}

TEST_F(Cli, EvalSolvesTasks) {
  const std::string json_path = path("tasks.json");
  write("gsm8k-test.jsonl",
        "{\"question\": \"1 + 1?\", \"answer\": \"#### 2\"}\n{\"question\": \"1 + 2?\", \"answer\": \"#### "
        "3\"}\n");
  const auto solve = [&](const std::string& recipes, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"--tasks", "gsm8k", "--task-data", folder_.string(),
                                      "--kv",    recipes, "--json",      json_path};
    words.insert(words.end(), more.begin(), more.end());
    if (std::ranges::find(more, "-n") == more.end()) words.insert(words.end(), {"-n", "9"});
    return run_model("eval", words);
  };
  const Outcome outcome = solve("kivi-2bit", {});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("gsm8k, 2 problems"), std::string::npos) << outcome.out;
  const auto json = nlohmann::json::parse(read_file(json_path));
  EXPECT_EQ(json["schema"], "kvant.tasks/1");
  ASSERT_EQ(json["results"].size(), 2U);
  EXPECT_EQ(json["results"][1]["recipe"], "kivi-2bit");
  EXPECT_EQ(json["results"][1]["answers"].size(), 2U);
  EXPECT_TRUE(json["results"][1]["plan"].contains("rows"));
  // A run that continues keeps the rows of the earlier run, including their times.
  const Outcome more = solve("kivi-2bit,q8_0", {"--resume"});
  ASSERT_EQ(more.code, 0) << more.err;
  const auto continued = nlohmann::json::parse(read_file(json_path));
  ASSERT_EQ(continued["results"].size(), 3U);
  EXPECT_EQ(continued["results"][0], json["results"][0]);
  EXPECT_EQ(continued["results"][1], json["results"][1]);
  EXPECT_EQ(continued["results"][2]["recipe"], "q8_0");
  // Rows of recipes that a command does not name also stay.
  const Outcome last = solve("q4_0", {"--resume"});
  ASSERT_EQ(last.code, 0) << last.err;
  const auto all = nlohmann::json::parse(read_file(json_path));
  ASSERT_EQ(all["results"].size(), 4U);
  EXPECT_EQ(all["results"][1]["recipe"], "q4_0");
  EXPECT_EQ(all["results"][2], continued["results"][1]);
  EXPECT_EQ(all["results"][3], continued["results"][2]);
  expect_user_error(solve("q8_0", {"--resume", "--weights", "stored"}), "--weights");
  // Rows on other problems or with other limits are not comparable, and stay.
  const std::string before = read_file(json_path);
  expect_user_error(solve("fp8", {"--resume", "--chunks", "1"}), "--chunks");
  expect_user_error(solve("kivi-2bit", {"--resume", "-n", "10"}), "-n 9, and not 10");
  EXPECT_EQ(read_file(json_path), before);
}

TEST_F(Cli, EvalJudgesEarlierCompletionsAgain) {
  write("gsm8k-test.jsonl", "{\"question\": \"1 + 1?\", \"answer\": \"#### 2\"}\n");
  const auto act = [&](const std::string& json, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"--tasks", "gsm8k", "--task-data", folder_.string(),
                                      "-n",      "9",     "--json",      path(json)};
    words.insert(words.end(), more.begin(), more.end());
    return run_model("eval", words);
  };
  ASSERT_EQ(act("a.json", {"--kv", "q8_0"}).code, 0);
  ASSERT_EQ(act("b.json", {"--kv", "q4_0", "--reference", "q8_0"}).code, 0);
  // The judge reads the completions, and not what the files say about them.
  auto a = nlohmann::json::parse(read_file(path("a.json")));
  a["results"][0]["answers"][0]["right"] = false;
  a["results"][0]["answers"][0]["completion"] = "\\boxed{1 + 1 = 2}";
  write("a.json", a.dump());
  const Outcome outcome = act("both.json", {"--judge", path("a.json") + "," + path("b.json")});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto both = nlohmann::json::parse(read_file(path("both.json")));
  ASSERT_EQ(both["results"].size(), 3U);
  EXPECT_EQ(both["results"][0]["recipe"], "bf16");
  EXPECT_EQ(both["results"][0]["right"], 1);
  EXPECT_EQ(both["results"][1]["recipe"], "q8_0");
  EXPECT_EQ(both["results"][1]["seconds"], a["results"][1]["seconds"]);
  EXPECT_EQ(both["results"][2]["recipe"], "q4_0");
  EXPECT_EQ(both["results"][2]["lost"], both["results"][2]["right"] == 1 ? 0 : 1);
  expect_user_error(act("c.json", {"--judge", path("b.json"), "--kv", "q8_0"}), "--kv");
  a["weights"] = "q8_0";
  write("a.json", a.dump());
  expect_user_error(act("c.json", {"--judge", path("b.json") + "," + path("a.json")}), "--weights");
  write("gsm8k-test.jsonl", "{\"question\": \"1 + 2?\", \"answer\": \"#### 3\"}\n");
  expect_user_error(act("c.json", {"--judge", path("b.json")}), "other problems");
}

TEST_F(Cli, EvalSaysWhatTasksNeed) {
  expect_user_error(run_model("eval", {"--tasks", "gsm8k"}), "--task-data");
  expect_user_error(run_model("eval", {"--tasks", "gsm9k"}), "bfcl-parallel");
  expect_user_error(run_model("eval", {"--tasks", "humaneval", "--task-data", folder_.string()}),
                    "fetch-tasks");
  write("gsm8k-test.jsonl", "{\"question\": \"1 + 1?\", \"answer\": \"2\"}\n");
  const std::vector<std::string> gsm8k = {"--tasks", "gsm8k", "--task-data", folder_.string()};
  expect_user_error(run_model("eval", gsm8k), "problem 0");
  expect_user_error(run_model("eval", {gsm8k[0], gsm8k[1], gsm8k[2], gsm8k[3], "--depths", "100"}), "-f");
  expect_user_error(run_model("eval", {gsm8k[0], gsm8k[1], gsm8k[2], gsm8k[3], "--kv", "llama.cpp:q8_0"}),
                    "llama.cpp:q8_0");
  EXPECT_NE(run_model("eval", {"--kv", "q8_0"}).err.find("--file"), std::string::npos);
  const Outcome help = run({"eval", "--tasks", "help"});
  EXPECT_EQ(help.code, 0) << help.err;
  EXPECT_NE(help.out.find("in a sandbox"), std::string::npos) << help.out;
}

TEST_F(Cli, EvalListsItsSuites) {
  const Outcome outcome = run({"eval", "--suite", "help"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("vecinfer-transforms"), std::string::npos) << outcome.out;
  const Outcome unknown = run_model("eval", {"-f", path("text.txt"), "--suite", "vecinfer"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("vecinfer-transforms"), std::string::npos) << unknown.err;
}

TEST_F(Cli, EvalLooksAtTheTextsToCalibrateOnFirst) {
  const auto eval = [](const std::string& text) {
    return run_model("eval", {"-f", path("text.txt"), "-c", "128", "--chunks", "1", "--kv", "tok4g64",
                              "--calibrate-on", text});
  };
  expect_user_error(eval(path("none.txt")), "none.txt': No such file");
  const Outcome unused = eval(path("text.txt"));
  EXPECT_EQ(unused.code, 0) << unused.err;
  EXPECT_NE(unused.err.find("--calibrate-on has no effect"), std::string::npos) << unused.err;
}

}  // namespace
}  // namespace kvant::cli_test
