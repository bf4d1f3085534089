// Tests the program as a user meets it: exit codes, messages and files.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "format/format.h"
#include "model/tiny_model.h"
#include "recipe/recipe.h"

namespace kvant::cli_test {
namespace {

namespace fs = std::filesystem;

struct Outcome {
  int code = -1;  // -1: ended by a signal
  std::string out, err;
};

std::string read_file(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

class Cli : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / ("kvant_cli_" + std::to_string(getpid()));
    fs::create_directories(folder_);
    setenv("XDG_CACHE_HOME", path("cache").c_str(), 1);  // keeps calibrations out of the user's cache folder
    TinyModelWriter(TinyModel{}).write(path("model.gguf"));
    std::string text;
    for (int i = 0; i < 700; ++i) text += static_cast<char>('a' + (i * i + i / 7) % 26);
    write("text.txt", text);
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }

  static std::string path(const std::string& name) { return (folder_ / name).string(); }
  static void write(const std::string& name, const std::string& contents) {
    std::ofstream(path(name), std::ios::binary) << contents;
  }

  // Runs the program with `input` on its standard input. It gets one thread because tests share the machine.
  static Outcome run(const std::vector<std::string>& words, const std::string& input = "",
                     const std::string& out = path("stdout")) {
    write("stdin", input);
    std::string command = quoted(KVANT_PROGRAM);
    for (const std::string& word : words) command += " " + quoted(word);
    command += " <" + path("stdin") + " >" + out + " 2>" + path("stderr");
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) && WEXITSTATUS(status) < 128 ? WEXITSTATUS(status) : -1,
            fs::is_regular_file(out) ? read_file(out) : "", read_file(path("stderr"))};
  }
  static Outcome run_model(const std::string& command, std::vector<std::string> words,
                           const std::string& input = "") {
    words.insert(words.begin(), {command, "-m", path("model.gguf"), "-t", "1"});
    return run(words, input);
  }

  // A user's error gives exit code 2, one line on stderr and nothing on stdout.
  static void expect_user_error(const Outcome& outcome, const std::string& part) {
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(outcome.err.starts_with("kvant: ")) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  }

  // Returns the first of Chromium's names that is installed here, or an empty string.
  static std::string find_browser() {
    for (const char* name : {"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"}) {
      if (std::system(("command -v " + std::string(name) + " >/dev/null").c_str()) == 0) return name;
    }
    return "";
  }

  // Returns the page of a report on two recipes. The first use makes it; it is empty where that fails.
  static std::string report_page() {
    std::string page = path("report.html");
    if (fs::exists(page)) return page;
    const Outcome outcome =
        run_model("report", {"-f", path("text.txt"), "-c", "256", "--chunks", "2", "-n", "8", "--kv",
                             "tok4g32s,tok4g32s,skip=0.01", "-o", page, "--json", path("report.json")});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? page : "";
  }

  static fs::path folder_;
};
fs::path Cli::folder_;

TEST_F(Cli, HelpOfEveryCommandListsEveryRecipeAndFormat) {
  EXPECT_EQ(run({"--help"}).code, 0);
  const std::vector<std::vector<std::string>> commands = {
      {"run"}, {"eval"}, {"bench"}, {"bench", "attention"}, {"info"}};
  for (std::vector<std::string> words : commands) {
    const std::string command = words.back();
    words.emplace_back("--help");
    const Outcome help = run(words);
    EXPECT_EQ(help.code, 0) << command;
    for (const Recipe& recipe : builtin_recipes()) {
      EXPECT_NE(help.out.find("  " + recipe.name + " "), std::string::npos) << command << " " << recipe.name;
    }
    for (const FormatFamily* family : format_families()) {
      EXPECT_NE(help.out.find(family->pattern), std::string::npos) << command << " " << family->pattern;
    }
  }
}

TEST_F(Cli, RunGeneratesAndSumsUp) {
  const std::string json_path = path("run.json");
  const Outcome outcome = run_model(
      "run", {"-p", "abc", "-n", "200", "--raw", "--kv", "ch4g128/tok4g128", "-v", "--json", json_path});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out, "");
  EXPECT_NE(outcome.err.find("plan: k=ch4g128,v=tok4g128"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("KV cache (ch4g128/tok4g128)"), std::string::npos) << outcome.err;
  const auto json = nlohmann::json::parse(read_file(json_path));
  EXPECT_EQ(json["schema"], "kvant.run/2");
  EXPECT_GT(json["generated_tokens"], 0);
  EXPECT_LE(json["generated_tokens"], 200);
  EXPECT_EQ(json["plan"]["rows"][0]["format"], "ch4g128");
}

TEST_F(Cli, RunIsDeterministicAndReadsFiles) {
  write("prompt.txt", "abc def");
  const Outcome typed = run_model("run", {"-p", "abc def", "-n", "20"});
  ASSERT_EQ(typed.code, 0) << typed.err;
  EXPECT_EQ(run_model("run", {"-f", path("prompt.txt"), "-n", "20"}).out, typed.out);
  const std::vector<std::string> sampled = {"-p", "abc", "-n", "20", "--temp", "2", "--seed", "7"};
  EXPECT_EQ(run_model("run", sampled).out, run_model("run", sampled).out);
}

TEST_F(Cli, RunWarnsBeyondTheTrainedContextAndStopsAtItsEnd) {
  const Outcome beyond = run_model("run", {"-p", "abc", "-n", "1", "-c", "2000"});
  EXPECT_EQ(beyond.code, 0);
  EXPECT_NE(beyond.err.find("trained for"), std::string::npos) << beyond.err;
  const Outcome full = run_model("run", {"-p", "abc", "--raw", "-n", "100", "-c", "8"});
  EXPECT_EQ(full.code, 0);
  EXPECT_NE(full.err.find("the context of 8 tokens is full"), std::string::npos) << full.err;
}

// After the first turn the cache must hold what the whole conversation would give. The random model may say
// any byte, so the test searches for a first turn that it answers with a letter: a letter's token survives
// the way through text.
TEST_F(Cli, ChatGoesOnFromWhatTheCacheHolds) {
  for (char c = 'a'; c <= 'z'; ++c) {
    const std::string turn(5, c);
    const Outcome chat = run_model("run", {"-cnv", "-n", "1"}, turn + "\nde\n");
    ASSERT_EQ(chat.code, 0) << chat.err;
    const std::string first = chat.out.substr(0, 1);
    if (!chat.out.starts_with(first + "\n") || first < "a" || first > "z") continue;
    const std::string whole = fmt::format(
        "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n<|im_start|>user\nde<|im_end|>"
        "\n"
        "<|im_start|>assistant\n",
        turn, first);
    const Outcome once = run_model("run", {"-p", whole, "--raw", "-n", "1"});
    EXPECT_EQ(chat.out, first + "\n" + once.out);
    return;
  }
  FAIL() << "the model answers no turn with a letter";
}

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
      4.5;  // the bits at 256 tokens; up to there one page is quantized and the steps of 16 tokens stay BF16
  for (int n = 129; n < 256; ++n) bits += (128 * 4.5 + (n - 128 + 15) / 16 * 16 * 16) / n;
  EXPECT_NEAR(json["results"][1]["bits_all"].get<double>(), bits / 128, 1e-9);
  EXPECT_EQ(json["results"][3]["recipe"], "bf16 (steps of 128)");
  EXPECT_LT(json["results"][3]["kld_mean"], 1e-4);  // the control differs by rounding alone
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
  ASSERT_EQ(json["results"].size(), 3U);  // the reference is not run twice
  EXPECT_EQ(json["results"][0]["recipe"], "tok4g32s");
  EXPECT_LT(json["results"][1]["kld_mean"], 1e-7);  // this threshold skips nothing
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
  const Outcome outcome =
      run_model("eval", {"-f", path("text.txt"), "-c", "256", "--chunks", "1", "--compare-backend",
                         "cpu/portable", "--kv", "tok4g64", "--json", json_path});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(read_file(json_path));
  ASSERT_EQ(json["results"].size(), 2U);
  EXPECT_LT(json["results"][1]["kld_mean"], 0.01);
  EXPECT_GT(json["results"][1]["output_error"], 0.0);
  EXPECT_LT(json["results"][1]["output_error"], 0.005);
  expect_user_error(run_model("eval", {"-f", path("text.txt"), "-c", "256", "--compare-backend", "gpu"}),
                    "gpu");
}

TEST_F(Cli, ServeRefusesWhatItCanNotServe) {
  const auto refuses = [](std::vector<std::string> words, const std::string& part) {
    words.insert(words.end(), {"-c", "256", "--kv", "tok4g64", "--port", "0"});
    expect_user_error(run_model("serve", words), part);
  };
  refuses({"--prefix-disk", "1GiB"}, "--sessions");
  for (const char* wrong : {"0", "1e30GiB", "many"})
    refuses({"--sessions", path("sessions"), "--prefix-disk", wrong}, "--prefix-disk: ");
  EXPECT_FALSE(fs::exists(path("sessions")));
  refuses({"--host", ""}, "--host is empty");
  refuses({"--api-key", ""}, "--api-key is empty");
  refuses({"--compare", "nonsense"}, "--compare: ");
  refuses({"--memory", "1e30GiB"}, "--memory: ");
  refuses({"--compare", "tok4g64"}, "--compare: ");
  refuses({"--compare", "bf16", "--memory", "1MiB"}, "--memory");
}

TEST_F(Cli, EvalRunsASuiteAsTheCommandLineSays) {
  const std::string json_path = path("suite.json");
  const Outcome outcome = run_model("eval", {"-f", path("text.txt"), "--suite", "search-groups", "-c",
                                             "256,128", "--chunks", "1", "--kv", "fp8", "--json", json_path});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("2 bits, groups of 32"), std::string::npos) << outcome.out;
  const auto json = nlohmann::json::parse(read_file(json_path));
  ASSERT_EQ(json.size(), 2U);  // one document per context
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

TEST_F(Cli, EvalListsItsSuites) {
  const Outcome outcome = run({"eval", "--suite", "help"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("vecinfer-transforms"), std::string::npos) << outcome.out;
  const Outcome unknown = run_model("eval", {"-f", path("text.txt"), "--suite", "vecinfer"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("vecinfer-transforms"), std::string::npos) << unknown.err;
}

TEST_F(Cli, CompareSaysWhatChanged) {
  const auto evaluate = [](const std::string& recipe, const std::string& json) {
    const Outcome outcome = run_model(
        "eval", {"-f", path("text.txt"), "-c", "128", "--chunks", "4", "--kv", recipe, "--json", path(json)});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  };
  evaluate("tok4g32s", "before.json");
  evaluate("tok4g32s;fp8", "after.json");
  const Outcome outcome =
      run({"compare", path("before.json"), path("after.json"), "--json", path("compare.json")});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("only after: fp8"), std::string::npos) << outcome.out;
  const auto json = nlohmann::json::parse(read_file(path("compare.json")));
  EXPECT_EQ(json["schema"], "kvant.compare/1");
  for (const auto& figure : json["results"]) {
    if (figure["figure"] != "kld_mean") continue;
    EXPECT_EQ(figure["paired"], true);
    EXPECT_EQ(figure["verdict"], "within noise");
  }
  expect_user_error(run({"compare", path("before.json"), path("text.txt")}), "not valid JSON");
}

TEST_F(Cli, ReportIsOnePageThatLoadsNothing) {
  const std::string page = read_file(report_page());
  ASSERT_NE(page, "");
  EXPECT_LT(page.size(), 2U << 20);
  for (const char* loads : {"src=", "<link rel=\"stylesheet\"", "@import", "fetch(", "url("})
    EXPECT_EQ(page.find(loads), std::string::npos) << loads;
  const auto json = nlohmann::json::parse(read_file(path("report.json")));
  EXPECT_EQ(json["schema"], "kvant.report/2");
  EXPECT_EQ(json["quality"]["results"].size(), 3U);
  EXPECT_EQ(json["layers"].size(), 3U);  // three contexts, because a recipe skips V
  EXPECT_EQ(json["memory"]["results"][0]["bytes"].size(), json["memory"]["contexts"].size());
}

TEST_F(Cli, ReportDrawsItsChartsInABrowser) {
  const std::string browser = find_browser();
  if (browser.empty()) GTEST_SKIP() << "no Chromium on this system";
  const std::string page = report_page();
  ASSERT_NE(page, "");
  // The sandbox needs rights that tests may not have, and the page is the program's own.
  const std::string command = "timeout 60 " + browser +
                              " --headless --no-sandbox --disable-gpu --enable-logging=stderr "
                              "--virtual-time-budget=5000 "
                              "--dump-dom " +
                              quoted("file://" + page) + " >" + path("dom.html") + " 2>" +
                              path("browser.log");
  ASSERT_EQ(std::system(command.c_str()), 0);
  const std::string dom = read_file(path("dom.html"));
  EXPECT_NE(dom.find("data-ready=\"true\""), std::string::npos);
  for (const char* id : {"summary", "tradeoff", "tail", "drift", "agreement", "memory", "greedy", "speed",
                         "heat", "skip", "plans"})
    EXPECT_NE(dom.find("<section id=\"" + std::string(id) + "\""), std::string::npos) << id;
  std::size_t charts = 0;
  for (std::size_t at = dom.find("<svg"); at != std::string::npos; at = dom.find("<svg", at + 1)) ++charts;
  EXPECT_EQ(charts, 7U + 1 + 2);  // the charts of the sections, the skip rates and two heat maps
  EXPECT_EQ(dom.find("NaN"), std::string::npos);
  EXPECT_EQ(read_file(path("browser.log")).find("CONSOLE"), std::string::npos)
      << read_file(path("browser.log"));
}

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
  EXPECT_TRUE(results[0]["rival"].get<std::string>().starts_with("ggml:f16"));  // ggml's counterpart of bf16
}

TEST_F(Cli, BenchAttentionLeavesOutWhatGgmlCannotStore) {
  const std::string json_path = path("attention80.json");
  const Outcome outcome = run({"bench", "attention", "--heads", "2", "--kv-heads", "2", "--dim", "80",
                               "--ctx", "128", "--kv", "q8_0", "-t", "1", "-r", "1", "--json", json_path});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("q4_0"), std::string::npos) << outcome.err;
  const auto json = nlohmann::json::parse(read_file(json_path));
  ASSERT_EQ(json["results"].size(), 3U);  // q8_0, and ggml's f16 with both graphs
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
  refuses({"--ctx", "16000000", "--heads", "1024", "--kv-heads", "1024"}, "takes");
  refuses({"--kv", "nonsense"}, "nonsense");
  refuses({"--kv", "llama.cpp:q4_0"}, "llama.cpp:q4_0");
  refuses({"--kv", "bf16,budget=3"}, "ladder");
  expect_user_error(run_model("bench", {"attention"}), "--model");
}

TEST_F(Cli, InfoKnowsEveryBuiltInRecipe) {
  for (const Recipe& recipe : builtin_recipes()) {
    const Outcome outcome = run_model("info", {"--kv", recipe.name, "-c", "1000", "-b", "3"});
    EXPECT_EQ(outcome.code, 0) << recipe.name << ": " << outcome.err;
    EXPECT_NE(outcome.out.find("KV cache at 1000 tokens"), std::string::npos) << recipe.name;
  }
}

// The plans must agree on kernels and fall-backs, too. plan_report_test.cc covers recipes that calibrate on
// first use.
TEST_F(Cli, InfoPlansWhatRunRuns) {
  for (const Recipe& recipe : builtin_recipes()) {
    const auto needs = [](const std::string& text, const char* word) {
      return text.find(word) != std::string::npos;
    };
    const std::string text = to_string(recipe);
    const bool calibrates = needs(text, "vq-") || needs(text, "ladder") || needs(text, "correction") ||
                            needs(text, "int8") || needs(text, "smooth") || needs(text, "mix");
    if (recipe.tier != Tier::product || calibrates) continue;
    const Outcome info = run_model("info", {"--kv", recipe.name, "--json", path("info.json")});
    const Outcome answer =
        run_model("run", {"--kv", recipe.name, "-p", "abc", "-n", "1", "--json", path("run.json")});
    ASSERT_EQ(info.code, 0) << recipe.name << ": " << info.err;
    ASSERT_EQ(answer.code, 0) << recipe.name << ": " << answer.err;
    const auto planned = nlohmann::json::parse(read_file(path("info.json")));
    const auto used = nlohmann::json::parse(read_file(path("run.json")));
    EXPECT_EQ(planned["plan"], used["plan"]) << recipe.name;
  }
}

TEST_F(Cli, InfoStatesBitsAndConstants) {
  // The model has 2 layers x 2 KV heads x 2 sides with d = 64. Each side has codebooks of 2^8 centroids of 4
  // bytes, their scales and a smoothing.
  const Outcome outcome =
      run_model("info", {"--kv", "vecinfer-2bit", "-c", "1024", "--json", path("info.json")});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(read_file(path("info.json")));
  const int bytes = 2 * 2 * (2 * (256 * 4 + 4) + 64 * 4);
  EXPECT_EQ(json["constant_bytes"], bytes);
  EXPECT_NEAR(json["constant_bits"].get<double>(), 8.0 * bytes / (2 * 2 * 2 * 64 * 1024), 1e-9);
  // At 897 to 1024 tokens, a window of 128 and an open page of 0 to 127 tokens are BF16, so at least 2.7 bits
  // remain.
  EXPECT_GT(json["bits_all"].get<double>(), (2 * 896 + 16 * 128) / 1024.0);
  EXPECT_LT(json["bits_all"].get<double>(), (2.5 * 896 + 16 * 256) / 1024.0);
  EXPECT_NE(outcome.out.find("model constants"), std::string::npos);
}

TEST_F(Cli, BadModelsAreOneClearSentence) {
  const std::string whole = read_file(path("model.gguf"));
  write("half.gguf", whole.substr(0, whole.size() / 2));
  write("header.gguf", whole.substr(0, 100));
  write("text.gguf", "this is not a model, whatever its name says");
  write("empty.gguf", "");
  std::string corrupt = whole;
  for (std::size_t i = 8; i < 24; ++i) corrupt[i] = '\xff';  // impossible counts
  write("corrupt.gguf", corrupt);
  for (const char* name :
       {"missing.gguf", "half.gguf", "header.gguf", "text.gguf", "empty.gguf", "corrupt.gguf"}) {
    for (const char* command : {"run", "info", "bench"}) {
      std::vector<std::string> words = {command, "-m", path(name)};
      if (std::string(command) == "run") words.insert(words.end(), {"-p", "abc"});
      expect_user_error(run(words), name);
    }
  }
  expect_user_error(run({"info", "-m", folder_.string()}), "regular file");
}

TEST_F(Cli, BadRecipesNameTheNearest) {
  expect_user_error(run_model("run", {"-p", "abc", "--kv", "kivi-2bits"}), "kivi-2bit");
  expect_user_error(run_model("run", {"-p", "abc", "-ctk", "ch4g129"}), "ch4g129");
  expect_user_error(run_model("info", {"--kv", "bf16,windw=128"}), "window");
  expect_user_error(run_model("eval", {"-f", path("text.txt"), "--kv", "bf16,llama.cpp:q9_0"}), "q8_0");
  expect_user_error(run_model("bench", {"--kv", "nonsense"}), "nonsense");
  expect_user_error(run_model("info", {"--kv", path("no-recipe.json")}), "no-recipe.json");
}

TEST_F(Cli, BadTextsAreOneClearSentence) {
  write("empty.txt", "");
  write("latin1.txt", "caf\xe9 au lait");
  expect_user_error(run_model("run", {}), "-p");
  expect_user_error(run_model("run", {"-p", ""}), "-p");
  expect_user_error(run_model("run", {"-p", "caf\xe9"}), "UTF-8");
  expect_user_error(run_model("run", {"-f", path("latin1.txt")}), "UTF-8");
  expect_user_error(run_model("run", {"-f", path("empty.txt")}), "empty");
  expect_user_error(run_model("run", {"-f", path("missing.txt")}), "missing.txt");
  expect_user_error(run_model("run", {"-f", folder_.string()}), "directory");
  expect_user_error(run_model("eval", {"-f", path("latin1.txt"), "-c", "4"}), "UTF-8");
  expect_user_error(run_model("eval", {"-f", path("text.txt"), "-c", "1000"}), "longer text");
  expect_user_error(run_model("eval", {"-f", path("text.txt"), "-c", "255"}), "even");
}

TEST_F(Cli, ImpossibleSizesAreOneClearSentence) {
  expect_user_error(run_model("run", {"-p", "a longer prompt", "-c", "4"}), "-c");
  expect_user_error(run_model("run", {"-p", "abc", "-t", "0"}), "threads");
  expect_user_error(run_model("run", {"-p", "abc", "-n", "nine"}), "nine");
  expect_user_error(run_model("run", {"-p", "abc", "--temp", "-1"}), "temp");
  expect_user_error(run_model("run", {"-p", "abc", "--top-p", "7"}), "top");
  expect_user_error(run_model("run", {"-p", "abc", "--no-such-option"}), "no-such-option");
  expect_user_error(run_model("bench", {"-d", "-5"}), "-5");
  expect_user_error(run_model("bench", {"-p", "0", "-n", "0"}), "nothing to time");
  expect_user_error(run({}), "subcommand");
  expect_user_error(run_model("run", {"-p", "abc", "-s", "-1"}),
                    "--seed: '-1' is not a number that it takes");
  expect_user_error(run_model("run", {"-p", "abc", "-p", "def"}), "--prompt is given more than once");
  const Outcome huge = run_model("run", {"-p", "abc", "-c", "1073741824"});
  EXPECT_EQ(huge.code, 2);
  EXPECT_NE(huge.err.find("takes"), std::string::npos)
      << huge.err;  // the warning about the trained context comes first
}

TEST_F(Cli, WrongCommandsAndOptionsAreAnsweredWithTheNearest) {
  expect_user_error(run({"serv", "--port", "0"}), "there is no command 'serv'; did you mean serve?");
  expect_user_error(run({"quantize"}), "the commands are run, serve, eval");
  expect_user_error(run({"run", "--temperature=1", "-p", "abc"}), "there is no option '--temperature'");
  expect_user_error(run({"run", "--temperature=1", "-p", "abc"}), "did you mean --temp");
  expect_user_error(run({"info", "--n-gpu-layers", "3"}),
                    "did you mean --gpu-layers?; see kvant info --help");
  expect_user_error(run({"run", "-fa", "on", "-p", "abc"}), "there is no option '--fa'");
  expect_user_error(run({"serve", "-np", "0"}), "not in range 1 to 1024");
  expect_user_error(run({"run", "hello"}), "'hello' belongs to no option");
  expect_user_error(run({"bench", "attention", "--heads", "0"}), "see kvant bench attention --help");
}

TEST_F(Cli, RunReadsItsPromptFromTheStandardInput) {
  const Outcome typed = run_model("run", {"-p", "abc def", "-n", "5"});
  const Outcome piped = run_model("run", {"-f", "-", "-n", "5"}, "abc def");
  EXPECT_EQ(piped.code, 0) << piped.err;
  EXPECT_EQ(piped.out, typed.out);
  expect_user_error(run_model("run", {"-f", "-"}), "empty");
}

TEST_F(Cli, AChatBeginsWithAFile) {
  write("turn.txt", "abc");
  const Outcome typed = run_model("run", {"-cnv", "-p", "abc", "-n", "3"});
  const Outcome read = run_model("run", {"-cnv", "-f", path("turn.txt"), "-n", "3"});
  EXPECT_EQ(read.code, 0) << read.err;
  EXPECT_EQ(read.out, typed.out);
  EXPECT_NE(read.out, "");
}

// `script` gives the program a terminal.
TEST_F(Cli, AChatGoesOnAfterATurnThatDoesNotFit) {
  if (std::system("command -v script >/dev/null") != 0) GTEST_SKIP() << "script is not installed";
  const std::string chat =
      quoted(KVANT_PROGRAM) + " run -m " + quoted(path("model.gguf")) + " -t 1 -cnv -n 2 -c 120";
  write("turns", std::string(300, 'x') + "\nabc\n\n");
  const std::string command =
      "script -qec " + quoted(chat) + " /dev/null <" + path("turns") + " >" + path("screen");
  EXPECT_EQ(std::system(command.c_str()), 0);
  const std::string screen = read_file(path("screen"));
  EXPECT_NE(screen.find("the chat goes on without it"), std::string::npos) << screen;
  EXPECT_EQ(screen.find("the chat goes on without it", screen.find("goes on") + 1), std::string::npos)
      << screen;
  EXPECT_NE(screen.find("decode: 2 tokens"), std::string::npos) << screen;
}

TEST_F(Cli, RawLeavesNoRoomForWhatTheTemplateHolds) {
  expect_user_error(run_model("run", {"-p", "abc", "--raw", "--system", "be brief"}), "--system needs");
  expect_user_error(run_model("run", {"-cnv", "--raw"}), "-cnv needs the chat template");
}

TEST_F(Cli, SaysThatAModelHasNoChatTemplate) {
  std::string model = read_file(path("model.gguf"));
  const std::string key = "tokenizer.chat_template";
  model.replace(model.find(key), key.size(), "tokenizer.that_template");
  write("plain.gguf", model);
  const std::vector<std::string> words = {"run", "-m", path("plain.gguf"), "-t", "1", "-n", "2", "-p", "abc"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  };
  const Outcome plain = with({}), raw = with({"--raw"});
  EXPECT_NE(plain.err.find("has no chat template"), std::string::npos) << plain.err;
  EXPECT_EQ(plain.out, raw.out);
  EXPECT_EQ(raw.err.find("template"), std::string::npos) << raw.err;
  expect_user_error(with({"--system", "be brief"}), "--system has no place");
}

// The program must run the template: no engine recognizes this one by its text.
TEST_F(Cli, RunsTheChatTemplateThatItIsGiven) {
  write("said.jinja",
        "{% set all = namespace(said='') %}{% for m in messages %}{% set all.said = all.said ~ m.content %}"
        "{% endfor %}{{ all.said }} and more");
  write("refuses.jinja", "{{ raise_exception('only poems') }}");
  const std::string said = path("said.jinja");
  const Outcome raw = run_model("run", {"-p", "abc and more", "--raw", "-n", "3"});
  const Outcome single = run_model("run", {"-p", "abc", "-n", "3", "--chat-template", said});
  const Outcome chat = run_model("run", {"-cnv", "-p", "abc", "-n", "3", "--chat-template", said});
  EXPECT_EQ(single.out, raw.out) << single.err;
  EXPECT_TRUE(chat.out.starts_with(raw.out)) << chat.err;
  expect_user_error(run_model("run", {"-p", "abc", "--chat-template", path("refuses.jinja")}), "only poems");
}

TEST_F(Cli, APromptIsNotCutAtAByteOfValueZero) {
  write("zero.txt", std::string("abc\0def", 7));
  expect_user_error(run_model("run", {"-f", path("zero.txt"), "-n", "2"}), "a byte of value 0, at 3");
}

TEST_F(Cli, EvalLooksAtTheTextsToCalibrateOnFirst) {
  const auto eval = [](const std::string& text) {
    return run_model("eval", {"-f", path("text.txt"), "-c", "128", "--chunks", "1", "--kv", "tok4g64",
                              "--calibrate-on", text});
  };
  expect_user_error(eval(path("none.txt")), "none.txt': No such file");
  const Outcome unused = eval(path("text.txt"));
  EXPECT_EQ(unused.code, 0) << unused.err;
  EXPECT_NE(unused.err.find("--calibrate-on changes nothing"), std::string::npos) << unused.err;
}

TEST_F(Cli, CommandsHaveNoOptionsThatTheyWouldNotRead) {
  expect_user_error(run_model("calibrate", {"--kv", "k=vq-d2b4", "--calibration", "x"}), "no option");
  expect_user_error(run_model("calibrate", {"--kv", "k=vq-d2b4", "--strict"}), "no option '--strict'");
  expect_user_error(run_model("tune", {"--budget", "3bit", "-o", "x.json", "--verbose"}), "no option");
}

TEST_F(Cli, SaysItsVersion) {
  const Outcome version = run({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_TRUE(version.out.starts_with("kvant ")) << version.out;
}

TEST_F(Cli, AnAnswerThatCouldNotBePrintedIsAnError) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full on this system";
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"run", "-m", path("model.gguf"), "-t", "1", "-p", "abc", "-n", "2"},
        std::vector<std::string>{"info", "-m", path("model.gguf")}}) {
    const Outcome outcome = run(words, "", "/dev/full");
    EXPECT_EQ(outcome.code, 2) << words.front();
    EXPECT_NE(outcome.err.find("cannot write the standard output"), std::string::npos) << outcome.err;
  }
}

TEST_F(Cli, AnUnwritableJsonIsFoundBeforeTheWork) {
  expect_user_error(run_model("run", {"-p", "abc", "--json", path("no/such/folder.json")}), "folder.json");
  expect_user_error(run_model("info", {"--json", folder_.string()}), "directory");
  expect_user_error(run_model("calibrate", {"--kv", "k=vq-d2b4", "--json", folder_.string()}), "directory");
  expect_user_error(
      run_model("tune", {"--budget", "3bit", "-o", path("tuned.json"), "--json", folder_.string()}),
      "directory");
}

TEST_F(Cli, AFullDiskIsAnErrorAfterTheGeneration) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full on this system";
  const Outcome outcome = run_model("run", {"-p", "abc", "-n", "2", "--json", "/dev/full"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("No space left"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace kvant::cli_test
