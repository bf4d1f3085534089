// Tests kvant tune, kvant advise and --guard on a tiny model.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "model/tiny_model.h"

namespace kvant::tune_test {
namespace {

namespace fs = std::filesystem;

struct Outcome {
  // -1 means that a signal ended the program.
  int code = -1;
  std::string out, err;
};

class Measuring : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / ("kvant_tune_" + std::to_string(getpid()));
    fs::create_directories(folder_);
    setenv("XDG_CACHE_HOME", path("cache").c_str(), 1);
    TinyModelWriter(TinyModel{}).write(path("model.gguf"));
    std::string text;
    for (int i = 0; i < 1400; ++i) text += static_cast<char>('a' + (i * i + i / 7) % 26);
    std::ofstream(path("text.txt")) << text;
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }

  static std::string path(const std::string& name) { return (folder_ / name).string(); }
  static std::string read_file(const std::string& name) {
    std::ostringstream text;
    text << std::ifstream(path(name)).rdbuf();
    return text.str();
  }
  // Runs the program. `words` go through the shell as they are.
  static Outcome run(const std::string& command, const std::string& words) {
    const std::string line = std::string(KVANT_PROGRAM) + " " + command + " -m " + path("model.gguf") +
                             " -t 1 " + words + " </dev/null >" + path("out") + " 2>" + path("err");
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file("out"), read_file("err")};
  }

 private:
  static fs::path folder_;
};
fs::path Measuring::folder_;

TEST_F(Measuring, TuneWritesARecipeThatRunsWithinItsBudget) {
  const std::string base =
      "--kv 'k=tok2g32,v=tok2g32,budget=4,ladder=tok2g32+tok4g32+tok8g32' --calibration " +
      path("constants.gguf");
  const Outcome calibrated =
      run("calibrate",
          "--kv 'k=tok2g32,v=tok2g32,budget=4,ladder=tok2g32+tok4g32+tok8g32' --samples 2 --length 128 -o " +
              path("constants.gguf") + " -f " + path("text.txt"));
  ASSERT_EQ(calibrated.code, 0) << calibrated.err;
  const Outcome tuned = run("tune", base + " --budget 7bit@512 -c 256 --contexts 2 --trials 4 -f " +
                                        path("text.txt") + " -o " + path("mine.json"));
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  EXPECT_NE(tuned.out.find("Held-out text, 2 contexts of 256 tokens"), std::string::npos) << tuned.out;
  const auto recipe = nlohmann::json::parse(read_file("mine.json"));
  const auto& figures = recipe["figures"];
  EXPECT_EQ(figures["schema"], "kvant.tune/2");
  EXPECT_LE(figures["bits_all"], 7.0);
  // About 2.5 of these bits belong to the tail.
  EXPECT_GT(figures["bits_all"], 6.0);
  EXPECT_EQ(figures["trials"], 4);
  EXPECT_LE(figures["tuning_kld"], figures["tuning_kld_as_calibrated"]);
  EXPECT_GT(figures["predicted_kld"], 0);
  EXPECT_GT(figures["held_out"][0]["kld_mean"], 0);
  EXPECT_FALSE(fs::exists(path("mine.json.partial")));
  const Outcome used = run("info", "-c 512 --kv " + path("mine.json") + " --json " + path("info.json"));
  ASSERT_EQ(used.code, 0) << used.err;
  EXPECT_EQ(nlohmann::json::parse(read_file("info.json"))["bits_all"], figures["bits_all"]);
}

TEST_F(Measuring, TuneSaysWhatIsWrongWithABudget) {
  for (const char* wrong : {"--budget lots", "--budget 64MiB", "--budget 2.5", "--budget 2.5@1k"}) {
    const Outcome outcome = run("tune", std::string(wrong) + " -o " + path("x.json"));
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("16k"), std::string::npos) << outcome.err;
  }
  EXPECT_NE(run("tune", "--budget 2.5 -o " + path("x.json")).err.find("write 2.5bit"), std::string::npos);
  EXPECT_NE(run("tune", "--budget 3bit --kv q4_0 -o " + path("x.json")).err.find("ladder"),
            std::string::npos);
}

TEST_F(Measuring, AdviseRecommendsWhatFits) {
  const Outcome all = run("advise", "-c 512 --kv bf16,q8_0,tok2g32 --memory 1GiB -f " + path("text.txt") +
                                        " --json " + path("advice.json"));
  ASSERT_EQ(all.code, 0) << all.err;
  EXPECT_NE(all.out.find("Recommended (*)"), std::string::npos) << all.out;
  const auto json = nlohmann::json::parse(read_file("advice.json"));
  EXPECT_EQ(json["schema"], "kvant.advise/1");
  EXPECT_EQ(json["results"].size(), 3U);
  EXPECT_EQ(json["recommended"], json["results"][0]["recipe"]);
  for (const auto& row : json["results"]) EXPECT_GT(row["decode_tps"], 0);
  const Outcome none = run("advise", "-c 512 --kv q8_0 --memory 1KiB -f " + path("text.txt"));
  EXPECT_EQ(none.code, 2) << none.err;
  EXPECT_NE(none.err.find("nothing fits"), std::string::npos) << none.err;
  EXPECT_NE(none.out.find("does not fit"), std::string::npos) << none.out;
}

TEST_F(Measuring, RunSaysWhatTheGuardFound) {
  const Outcome guarded =
      run("run", "--raw -f " + path("text.txt") + " -n 20 -c 2000 --kv tok4g32 --guard 1/4 --json " +
                     path("run.json"));
  ASSERT_EQ(guarded.code, 0) << guarded.err;
  EXPECT_NE(guarded.err.find("guard (1/4): "), std::string::npos) << guarded.err;
  const auto guard = nlohmann::json::parse(read_file("run.json"))["guard"];
  EXPECT_EQ(guard["every"], 4);
  EXPECT_GT(guard["checks"], 0);
  EXPECT_GT(guard["bytes"], 0);
  EXPECT_GT(guard["relative_error"], 0);
  EXPECT_EQ(run("run", "-p hi --guard often").code, 2);
}

}  // namespace
}  // namespace kvant::tune_test
