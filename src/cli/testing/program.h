// Lets tests run the program in a new folder with a tiny model.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "model/tiny_model.h"

namespace kvant::testing {

struct Outcome {
  // -1 means that a signal ended the program.
  int code = -1;
  std::string out, err;
};

class Program : public ::testing::Test {
 protected:
  Program() {
    std::filesystem::create_directories(folder_);
    // Calibrations must not reach the user's cache folder.
    setenv("XDG_CACHE_HOME", path("cache").c_str(), 1);
    TinyModelWriter(TinyModel{}).write(path("model.gguf"));
    std::string text;
    for (int i = 0; i < 1400; ++i) text += static_cast<char>('a' + (i * i + i / 7) % 26);
    write("text.txt", text);
  }
  ~Program() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& contents) const {
    std::ofstream(path(name), std::ios::binary) << contents;
  }
  std::string read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(path(name), std::ios::binary).rdbuf();
    return text.str();
  }
  // Runs `program` in the test's folder. `words` go through the shell.
  Outcome run(const std::string& words, const std::string& program = KVANT_PROGRAM) const {
    const std::string line =
        "cd " + folder_.string() + " && " + program + " " + words + " </dev/null >stdout 2>stderr";
    const int status = std::system(line.c_str());
    const bool ended = WIFEXITED(status) && WEXITSTATUS(status) < 128;
    return {ended ? WEXITSTATUS(status) : -1, read("stdout"), read("stderr")};
  }

 private:
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("kvant_program_" + std::to_string(getpid()));
};

}  // namespace kvant::testing
