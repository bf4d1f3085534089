// Tests that a broken file or an impossible size ends the program at once with one clear sentence.
#include <fmt/format.h>

#include "cli/testing/program.h"

namespace kvant {
namespace {

using Faults = testing::Program;
using testing::Outcome;

std::string repeated(const std::string& text, int n) {
  std::string all;
  for (int i = 0; i < n; ++i) all += text;
  return all;
}

TEST_F(Faults, JsonOfAnyShapeIsOneSentence) {
  const std::pair<std::string, const char*> cases[] = {
      {repeated("[", 200000), "64 levels"},
      {repeated("{\"results\":", 200000), "64 levels"},
      {"{\"schema\":5}", "no \"schema\""},
      {"{\"schema\":\"kvant.eval/2\",\"results\":3}", "no list of results"},
      {"nonsense", "not valid JSON"}};
  for (const auto& [text, part] : cases) {
    write("odd.json", text);
    for (const char* words : {"compare odd.json odd.json", "info -m model.gguf --kv odd.json"}) {
      const Outcome outcome = run(words);
      EXPECT_EQ(outcome.code, 2) << text.substr(0, 40);
      EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
      EXPECT_EQ(outcome.err.find("json.exception"), std::string::npos) << outcome.err;
      if (words[0] != 'c') continue;
      EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    }
  }
  write("prompts.txt", "{\"prompt\":" + repeated("[", 200000));
  const Outcome greedy = run("eval -m model.gguf -t 1 --greedy -f prompts.txt");
  EXPECT_EQ(greedy.code, 2);
  EXPECT_NE(greedy.err.find("64 levels"), std::string::npos) << greedy.err;
}

TEST_F(Faults, TheByteThatIsNotUtf8IsCountedInTheUsersText) {
  write("latin1.txt", "caf\xe9 au lait");
  const Outcome user = run("run -m model.gguf -t 1 -f latin1.txt");
  EXPECT_EQ(user.code, 2);
  EXPECT_NE(user.err.find("byte 3 (0xe9)"), std::string::npos) << user.err;
  const Outcome system = run("run -m model.gguf -t 1 -p abc --system \"$(cat latin1.txt)\"");
  EXPECT_EQ(system.code, 2);
  EXPECT_NE(system.err.find("the system message is not UTF-8: byte 3"), std::string::npos) << system.err;
}

// A log may be on a full disk, and services may close the standard error stream.
TEST_F(Faults, MessagesThatNobodyCanReadEndNothing) {
  for (const std::string stream : {"&-", "/dev/full"}) {
    const auto status = [&](const std::string& words) {
      return run("-c '" + std::string(KVANT_PROGRAM) + " " + words + " 2>" + stream + "'", "sh").code;
    };
    EXPECT_EQ(status("run -m model.gguf -t 1 -p abc -n 2"), 0) << stream;
    EXPECT_EQ(status("run -m missing.gguf -t 1 -p abc"), 2) << stream;
  }
}

// The first file that a program opens gets the number of a closed stream. A server keeps its lock file open.
TEST_F(Faults, MessagesDoNotGoIntoFilesIfTheErrorStreamIsClosed) {
  const std::string words = " serve -m model.gguf -t 1 --port 0 --sessions kept 2>&-";
  run("-c 'timeout -s INT 3 " + std::string(KVANT_PROGRAM) + words + "'", "sh");
  EXPECT_EQ(std::filesystem::file_size(path("kept") + "/.lock"), 0U);
}

TEST_F(Faults, AnImpossibleBudgetIsRefusedBeforeTheCalibration) {
  for (const std::string budget : {"0.3bit@512", "1KiB@512", "99bit@512", "1TiB@512"}) {
    const Outcome outcome =
        run("tune -m model.gguf -t 1 -f text.txt -c 256 --contexts 2 -o mine.json --budget " + budget);
    EXPECT_EQ(outcome.code, 2);
    const char* which = budget.starts_with("0.3") || budget.starts_with("1K") ? "smallest" : "largest";
    EXPECT_NE(outcome.err.find(fmt::format("the {} formats of the ladder need", which)), std::string::npos)
        << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(path("cache"))) << "calibrated first";
  }
}

}  // namespace
}  // namespace kvant
