// Tests that no command replaces a file that it reads, or a model.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/testing/cli.h"

namespace kvant::cli_test {
namespace {

class OutputFiles : public Cli {
 protected:
  // Expects that a command refuses to replace `file`, and that the file stays.
  static void expect_kept(const std::string& file, const std::vector<std::string>& words,
                          const std::string& part) {
    const std::string before = read_file(path(file));
    expect_user_error(run(words), part);
    EXPECT_EQ(read_file(path(file)), before);
  }
};

TEST_F(OutputFiles, AreNoInputs) {
  const std::string model = path("model.gguf"), text = path("text.txt");
  write("prompts.txt", "abc\n");
  write("mine.json", R"({"recipe": "q8_0"})");
  expect_kept("text.txt", {"eval", "-m", model, "-f", text, "-c", "128", "--json", text}, "--file");
  expect_kept("text.txt", {"report", "-m", model, "-f", text, "-o", text}, "--file");
  expect_kept(
      "prompts.txt",
      {"report", "-m", model, "-f", text, "--prompts", path("prompts.txt"), "-o", path("prompts.txt")},
      "--prompts");
  expect_kept("mine.json",
              {"info", "-m", model, "--kv", "mine=1," + path("mine.json"), "--json", path("mine.json")},
              "--kv");
  expect_kept("text.txt", {"compare", path("mine.json"), text, "--json", text}, "after");
  expect_kept("text.txt", {"report", "-m", model, "-f", text, "-o", path("new"), "--json", path("./new")},
              "--json");
  // A link to an input is the same file under another name.
  fs::create_symlink(text, path("soft.txt"));
  fs::create_hard_link(text, path("hard.txt"));
  for (const char* link : {"soft.txt", "hard.txt"})
    expect_kept("text.txt", {"eval", "-m", model, "-f", text, "-c", "128", "--json", path(link)}, "--file");
  // A prompt is no file, whatever it says.
  write("abc", "");
  const Outcome prompt = run_model("run", {"-p", path("abc"), "-n", "1", "--json", path("abc")});
  EXPECT_EQ(prompt.err.find("also the file"), std::string::npos) << prompt.err;
  EXPECT_EQ(run_model("info", {"--json", "/dev/null"}).code, 0);
}

TEST_F(OutputFiles, MayHaveTheNameOfARecipe) {
  const fs::path before = fs::current_path();
  fs::current_path(path(""));
  const Outcome outcome = run_model("info", {"--kv", "q8_0", "--json", "q8_0"});
  fs::current_path(before);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_FALSE(read_file(path("q8_0")).empty());
}

TEST_F(OutputFiles, AreNoModels) {
  fs::copy_file(path("model.gguf"), path("other.gguf"));
  const std::string model = path("model.gguf");
  expect_kept("model.gguf", {"calibrate", "-m", model, "-o", model, "--kv", "k=vq-d2b4"}, "--model");
  expect_kept("other.gguf", {"calibrate", "-m", model, "-o", path("other.gguf"), "--kv", "k=vq-d2b4"},
              "not a calibration");
  expect_kept("other.gguf", {"info", "-m", model, "--json", path("other.gguf")}, "is a GGUF file");
  const std::vector<std::string> again = {
      "--kv", "k=vq-d2b4", "--samples",      "2",  "--length",
      "64",   "-f",        path("text.txt"), "-o", path("constants.gguf")};
  ASSERT_EQ(run_model("calibrate", again).code, 0);
  const Outcome second = run_model("calibrate", again);
  EXPECT_EQ(second.code, 0) << second.err;
  // Passages of 64 tokens have no whole page, so no error was measured.
  EXPECT_NE(second.out.find("no whole page"), std::string::npos) << second.out;
  EXPECT_EQ(second.out.find("0.00000    0.00000"), std::string::npos) << second.out;
}

}  // namespace
}  // namespace kvant::cli_test
