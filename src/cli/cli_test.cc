// Tests the program from a user's view: exit codes, messages and files.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/testing/cli.h"
#include "format/format.h"
#include "recipe/builtin.h"
#include "recipe/recipe.h"

namespace kvant::cli_test {
namespace {

TEST_F(Cli, HelpOfEveryCommandListsTheProductRecipes) {
  EXPECT_EQ(run({"--help"}).code, 0);
  const std::vector<std::vector<std::string>> commands = {
      {"run"}, {"eval"}, {"bench"}, {"bench", "attention"}, {"info"}};
  for (std::vector<std::string> words : commands) {
    const std::string command = words.back();
    words.emplace_back("--help");
    const Outcome help = run(words);
    EXPECT_EQ(help.code, 0) << command;
    for (const Recipe& recipe : builtin_recipes())
      EXPECT_EQ(help.out.find("\n  " + recipe.name + " ") != std::string::npos, recipe.tier == Tier::product)
          << command << " " << recipe.name;
    EXPECT_NE(help.out.find("kvant recipes lists all"), std::string::npos) << command;
  }
}

TEST_F(Cli, RecipesListsWhateverKvTakes) {
  const Outcome list = run({"recipes"});
  ASSERT_EQ(list.code, 0) << list.err;
  std::vector<std::string> names;
  for (const Recipe& recipe : builtin_recipes()) names.push_back(recipe.name);
  for (const FormatFamily* family : format_families()) names.push_back(family->pattern);
  for (const LlamaCppType& type : llama_cpp_types()) names.emplace_back(type.name);
  for (const std::string& name : names)
    EXPECT_NE(list.out.find("\n  " + name + " "), std::string::npos) << name;
}

// A default in the help must be what the command does without the option.
TEST_F(Cli, HelpNamesEachDefaultOnce) {
  EXPECT_EQ(run({"run", "--help"}).out.find("1/64\n"), std::string::npos);
  for (const char* command :
       {"run", "serve", "eval", "bench", "info", "calibrate", "tune", "advise", "report"}) {
    const std::string help = run({command, "--help"}).out;
    const std::size_t kv = help.find("--kv,"), next = help.find("\n  -", kv);
    ASSERT_NE(kv, std::string::npos) << command;
    EXPECT_NE(help.substr(kv, next - kv).find("(default: "), std::string::npos) << command;
  }
}

TEST_F(Cli, EmptyNamesAreRefused) {
  expect_user_error(run({"run", "-m", "", "-p", "abc"}), "--model: the name is empty");
  for (const char* names : {"", "a,,b", ",a"})
    expect_user_error(run_model("serve", {"--port", "0", "--alias", names}), "--alias has an empty name");
}

TEST_F(Cli, StrictRefusesTheUncalibratedRecipe) {
  for (const char* command : {"run", "bench", "info"}) {
    std::vector<std::string> words = {"--kv", "kvant-4bit"};
    if (std::string(command) == "run") words.insert(words.end(), {"-p", "abc", "-n", "1"});
    EXPECT_EQ(run_model(command, words).code, 0) << command;
    words.emplace_back("--strict");
    const Outcome strict = run_model(command, words);
    EXPECT_EQ(strict.code, 2) << command;
    EXPECT_NE(strict.err.find("used in place of kvant-4bit"), std::string::npos) << strict.err;
  }
  EXPECT_EQ(run_model("run", {"--kv", "uniform-4bit", "--strict", "-p", "abc", "-n", "1"}).code, 0);
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
  refuses({"--memory", "900000GiB"}, "give a smaller --memory");
  refuses({"--compare", "tok4g64"}, "--compare: ");
  refuses({"--compare", "bf16", "--memory", "1MiB"}, "--memory");
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
  expect_user_error(run({"compare", path("before.json")}), "after is missing: second result file");
}

TEST_F(Cli, BadModelsAreOneClearSentence) {
  const std::string whole = read_file(path("model.gguf"));
  write("half.gguf", whole.substr(0, whole.size() / 2));
  write("header.gguf", whole.substr(0, 100));
  write("text.gguf", "this is not a model, whatever its name says");
  write("empty.gguf", "");
  std::string corrupt = whole;
  // The header's counts become impossibly large.
  for (std::size_t i = 8; i < 24; ++i) corrupt[i] = '\xff';
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
  // The second half of two tokens has no position to score.
  expect_user_error(run_model("eval", {"-f", path("text.txt"), "-c", "2"}), "not in range 4 to");
}

TEST_F(Cli, ImpossibleSizesAreOneClearSentence) {
  expect_user_error(run_model("run", {"-p", "a longer prompt", "-c", "4"}), "-c");
  expect_user_error(run_model("run", {"-p", "abc", "-t", "0"}), "threads");
  expect_user_error(run_model("run", {"-p", "abc", "-n", "nine"}), "nine");
  expect_user_error(run_model("run", {"-p", "abc", "--temp", "-1"}), "temp");
  expect_user_error(run_model("run", {"-p", "abc", "--top-p", "7"}), "top");
  expect_user_error(run_model("run", {"-p", "abc", "--no-such-option"}), "no-such-option");
  expect_user_error(run_model("bench", {"-d", "-5"}), "-5");
  expect_user_error(run_model("bench", {"-p", "0", "-n", "0"}), "nothing to measure");
  expect_user_error(run({}), "subcommand");
  expect_user_error(run_model("run", {"-p", "abc", "-s", "-2"}), "--seed");
  expect_user_error(run_model("run", {"-p", "abc", "-s", "4294967296"}), "--seed");
  expect_user_error(run_model("run", {"-p", "a longer prompt", "-c", "4"}), "tokens, which leaves no room");
  expect_user_error(run_model("run", {"-p", "abc", "-p", "def"}), "--prompt is given more than once");
  const Outcome huge = run_model("run", {"-p", "abc", "-c", "1073741824"});
  EXPECT_EQ(huge.code, 2);
  EXPECT_NE(huge.err.find("needs"), std::string::npos)
      // A warning about the trained context precedes the error.
      << huge.err;
}

TEST_F(Cli, WrongCommandsAndOptionsAreAnsweredWithTheNearest) {
  expect_user_error(run({"serv", "--port", "0"}), "there is no command 'serv'; did you mean serve?");
  expect_user_error(run({"quantize"}), "the commands are run, serve, eval");
  expect_user_error(run({"run", "--temperature=1", "-p", "abc"}), "there is no option '--temperature'");
  expect_user_error(run({"run", "--temperature=1", "-p", "abc"}), "did you mean --temp");
  expect_user_error(run({"info", "--n-gpu-layers", "3"}),
                    "did you mean --gpu-layers?; see kvant info --help");
  expect_user_error(run({"run", "-fa", "on", "-p", "abc"}), "there is no option '-fa'");
  expect_user_error(run({"serve", "-np", "0"}), "not in range 1 to 1024");
  expect_user_error(run({"run", "-np", "3"}), "there is no option '-np'");
  expect_user_error(run({"run", "hello"}), "'hello' belongs to no option: give the text of a prompt with -p");
  expect_user_error(run({"bench", "attention", "--heads", "0"}), "see kvant bench attention --help");
}

TEST_F(Cli, CommandsHaveNoOptionsThatTheyWouldNotRead) {
  expect_user_error(run_model("calibrate", {"--kv", "k=vq-d2b4", "--calibration", "x"}), "no option");
  expect_user_error(run_model("calibrate", {"--kv", "k=vq-d2b4", "--strict"}), "no option '--strict'");
  expect_user_error(run_model("tune", {"--budget", "3bit", "-o", "x.json", "--verbose"}), "no option");
  expect_user_error(run_model("tune", {"--budget", "3bit", "-o", "x.json", "-ctk", "fp8"}),
                    "no option '-ctk'");
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
        std::vector<std::string>{"info", "-m", path("model.gguf")}, std::vector<std::string>{"recipes"}}) {
    const Outcome outcome = run(words, "", "/dev/full");
    EXPECT_EQ(outcome.code, 2) << words.front();
    EXPECT_NE(outcome.err.find("cannot write to the standard output"), std::string::npos) << outcome.err;
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
