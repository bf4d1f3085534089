// Lets tests run the program as a user does. All tests of a process share one folder and one tiny model.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cli/testing/program.h"
#include "model/tiny_model.h"

namespace kvant::cli_test {

namespace fs = std::filesystem;
using testing::Outcome;

inline std::string read_file(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

inline std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

class Cli : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / ("kvant_cli_" + std::to_string(getpid()));
    fs::create_directories(folder_);
    // Calibrations must not reach the user's cache folder.
    setenv("XDG_CACHE_HOME", path("cache").c_str(), 1);
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

  // Runs the program with `input` on its standard input. The program gets one thread, because tests share the
  // machine.
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

  // A user's error must give exit code 2, one line on stderr and nothing on stdout.
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

  // Returns the path of a report's page on two recipes, or an empty path if the report failed. The first call
  // makes the report.
  static std::string report_page() {
    std::string page = path("report.html");
    if (fs::exists(page)) return page;
    const Outcome outcome =
        run_model("report", {"-f", path("text.txt"), "-c", "256", "--chunks", "2", "-n", "8", "--kv",
                             "tok4g32s,tok4g32s,skip=0.01", "-o", page, "--json", path("report.json")});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? page : "";
  }

  static inline fs::path folder_;
};

}  // namespace kvant::cli_test
