// Tests `kvant run` from a user's view: exit codes, messages and files.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "cli/testing/cli.h"

namespace kvant::cli_test {
namespace {

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
  const std::vector<std::string> random = {"-p", "abc", "-n", "20", "--temp", "100", "--seed", "-1"};
  EXPECT_NE(run_model("run", random).out, run_model("run", random).out);
}

// The summary's figures describe one cache, so the ratio must be 16 divided by the bits per value.
TEST_F(Cli, TheSummaryOfARunAgreesWithItself) {
  const Outcome brief = run_model("run", {"-p", "abc", "-n", "5", "--raw", "--kv", "uniform-4bit"});
  ASSERT_EQ(brief.code, 0) << brief.err;
  EXPECT_NE(brief.err.find("no page of 128 tokens is sealed yet"), std::string::npos) << brief.err;
  EXPECT_EQ(brief.err.find("bits per value"), std::string::npos) << brief.err;
  const Outcome outcome =
      run_model("run", {"-f", path("text.txt"), "-n", "5", "--raw", "--kv", "uniform-4bit"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::smatch found;
  ASSERT_TRUE(std::regex_search(
      outcome.err, found, std::regex(R"(, ([0-9.]+) bits per value; bf16 would take .* \(([0-9.]+)x\))")))
      << outcome.err;
  EXPECT_NEAR(16 / std::stod(found[1]), std::stod(found[2]), 0.006) << outcome.err;
}

TEST_F(Cli, RunWarnsBeyondTheTrainedContextAndStopsAtItsEnd) {
  const Outcome beyond = run_model("run", {"-p", "abc", "-n", "1", "-c", "2000"});
  EXPECT_EQ(beyond.code, 0);
  EXPECT_NE(beyond.err.find("trained for"), std::string::npos) << beyond.err;
  const Outcome full = run_model("run", {"-p", "abc", "--raw", "-n", "100", "-c", "8"});
  EXPECT_EQ(full.code, 0);
  EXPECT_NE(full.err.find("the context of 8 tokens is full: give a larger -c"), std::string::npos)
      << full.err;
}

// After the first turn, the cache must hold what reading the whole conversation would give. The random model
// may generate any byte, but only a letter has the same token when its text is encoded again. The test
// therefore searches for a first turn whose completion is a letter.
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

// The program `script` gives kvant a terminal.
TEST_F(Cli, AChatGoesOnAfterATurnThatDoesNotFit) {
  if (std::system("command -v script >/dev/null") != 0) GTEST_SKIP() << "script is not installed";
  const std::string chat =
      quoted(KVANT_PROGRAM) + " run -m " + quoted(path("model.gguf")) + " -t 1 -cnv -n 2 -c 120";
  write("turns", std::string(300, 'x') + "\nabc\n");
  const std::string command =
      "script -qec " + quoted(chat) + " /dev/null <" + path("turns") + " >" + path("screen");
  EXPECT_EQ(std::system(command.c_str()), 0);
  const std::string screen = read_file(path("screen"));
  EXPECT_NE(screen.find("the chat continues without this message"), std::string::npos) << screen;
  EXPECT_EQ(screen.find("the chat continues without this message", screen.find("the chat continues") + 1),
            std::string::npos)
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
  expect_user_error(with({"--system", "be brief"}), "--system needs a chat template");
  expect_user_error(run({"run", "-m", path("plain.gguf"), "-t", "1", "-cnv"}), "--chat-template FILE");
}

// The program must really run the template, because no engine could recognize the test's template by its
// text.
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

}  // namespace
}  // namespace kvant::cli_test
