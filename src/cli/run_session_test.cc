// Tests `kvant run --session`. A run must either continue what the file holds or refuse the file in one
// sentence.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/testing/program.h"

namespace kvant {
namespace {

using testing::Outcome;

class RunSession : public testing::Program {
 protected:
  Outcome generate(const std::string& words) const {
    return run("run -m model.gguf -t 1 --json result.json --session a.session " + words);
  }
  nlohmann::json result() const { return nlohmann::json::parse(read("result.json")); }
};

TEST_F(RunSession, GoesOnWithoutReadingAgain) {
  const Outcome first = generate("--raw -f text.txt -n 20 -c 4000 --kv kvant-3bit");
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(result()["session_tokens"], 0);
  const std::string file = read("a.session");
  const Outcome second = generate("--raw -p def -n 20 -c 4000 --kv kvant-3bit");
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_GE(result()["session_tokens"], 1400);
  EXPECT_LE(result()["prompt_tokens"], 4);
  EXPECT_NE(second.err.find("tokens restored without prefill"), std::string::npos) << second.err;
  EXPECT_NE(read("a.session"), file);
  write("a.session", file);
  EXPECT_EQ(generate("--raw -p def -n 20 -c 4000 --kv kvant-3bit").out, second.out);
}

TEST_F(RunSession, CompactFilesAreSmallerAndGoOnTheSame) {
  const std::string first = "--raw -f text.txt -n 20 -c 4000 --kv kvant-3bit ";
  const std::string second = "--raw -p def -n 20 -c 4000 --kv kvant-3bit ";
  ASSERT_EQ(generate(first).code, 0);
  const std::string plain = read("a.session");
  const Outcome expected = generate(second);
  const std::string grown = read("a.session");
  std::filesystem::remove(path("a.session"));
  const Outcome learning = generate(first + "--session-coding compact");
  ASSERT_EQ(learning.code, 0) << learning.err;
  EXPECT_NE(learning.err.find("learning it once"), std::string::npos) << learning.err;
  const std::string compact = read("a.session");
  EXPECT_LT(compact.size(), plain.size());
  // The run can read a compact file although it writes a plain file.
  const Outcome found = generate(second);
  EXPECT_EQ(found.out, expected.out) << found.err;
  EXPECT_EQ(read("a.session"), grown);
  write("a.session", compact);
  const Outcome again = generate(second + "--session-coding compact");
  EXPECT_EQ(again.out, expected.out);
  EXPECT_EQ(again.err.find("learning it once"), std::string::npos) << again.err;
  EXPECT_LT(read("a.session").size(), grown.size());
  // The option is an error without --session.
  EXPECT_EQ(run("run -m model.gguf -p a --session-coding compact").code, 2);
}

// At the test's temperature, all tokens of the small vocabulary are almost equally likely.
TEST_F(RunSession, ControlTokensAreKeptAndNotShown) {
  int n_kept = 0;
  for (const char* seed : {"1", "2", "3", "4", "5", "6"}) {
    std::filesystem::remove(path("a.session"));
    const Outcome outcome = generate("--raw -p abc -n 500 -c 1000 --temp 10000 --seed " + std::string(seed));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    n_kept += read("a.session").find("<s>") != std::string::npos;
    EXPECT_EQ(outcome.out.find("<s>"), std::string::npos);
    EXPECT_EQ(std::string(result()["answer"]).find("<s>"), std::string::npos);
  }
  EXPECT_GT(n_kept, 0);
}

TEST_F(RunSession, PromptsAreTurnsOfTheChat) {
  ASSERT_EQ(generate("-p abc -n 5").code, 0);
  const int held =
      static_cast<int>(result()["prompt_tokens"]) + static_cast<int>(result()["generated_tokens"]);
  ASSERT_EQ(generate("-p de -n 5").code, 0);
  EXPECT_EQ(result()["session_tokens"], held);
  const std::string text = read("a.session");
  const std::size_t turn = text.find("<|im_end|>\n<|im_start|>user\nde<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_NE(turn, std::string::npos);
  EXPECT_LT(text.find("<|im_start|>user\nabc<|im_end|>\n<|im_start|>assistant\n"), turn);
  const Outcome chat = run("run -m model.gguf -t 1 --session a.session -cnv -p fg -n 5");
  EXPECT_EQ(chat.code, 0) << chat.err;
  EXPECT_NE(read("a.session").find("user\nfg<|im_end|>"), std::string::npos);
}

TEST_F(RunSession, WhatDoesNotFitIsRefusedInASentence) {
  ASSERT_EQ(generate("-p abc -n 5 --kv uniform-3bit").code, 0);
  const std::string file = read("a.session");
  const auto refused = [&](const std::string& words, const std::string& part) {
    const Outcome outcome = generate(words);
    EXPECT_EQ(outcome.code, 2) << words;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  };
  refused("-p de --kv uniform-4bit",
          "it began with uniform-3bit, not with uniform-4bit; continue it with --kv 'uniform-3bit'");
  refused("-p de --kv uniform-3bit --system Hello", "--system is for new sessions only");
  refused("-p de --kv uniform-3bit --guard 1/1", "--guard");
  EXPECT_EQ(read("a.session"), file);
  write("a.session", file.substr(0, file.size() - 1));
  refused("-p de --kv uniform-3bit", "damaged");
  std::string flipped = file;
  flipped[file.size() / 2] ^= 1;
  write("a.session", flipped);
  refused("-p de --kv uniform-3bit", "damaged");
  write("a.session", file);
  TinyModelWriter(TinyModel{.seed = 2}).write(path("model.gguf"));
  refused("-p de --kv uniform-3bit", "of another model");
  const Outcome nowhere = run("run -m model.gguf -t 1 -p de --session no/folder/a.session");
  EXPECT_EQ(nowhere.code, 2);
  EXPECT_NE(nowhere.err.find("no/folder"), std::string::npos) << nowhere.err;
}

}  // namespace
}  // namespace kvant
