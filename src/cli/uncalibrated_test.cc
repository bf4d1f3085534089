// Tests that kvant's own recipes work without a calibration, and that the output then says so.
#include <nlohmann/json.hpp>

#include "cli/testing/program.h"

namespace kvant {
namespace {

using Uncalibrated = testing::Program;
using testing::Outcome;

TEST_F(Uncalibrated, RunGeneratesAtOnceAndSaysSo) {
  const Outcome run_once =
      run("run -m model.gguf -t 1 --raw -f text.txt -n 4 --kv kvant-2bit --json run.json");
  ASSERT_EQ(run_once.code, 0) << run_once.err;
  EXPECT_NE(run_once.err.find("KV cache (uniform-2bit)"), std::string::npos) << run_once.err;
  const std::string line =
      "kvant: uniform-2bit is used in place of kvant-2bit, which is not calibrated for this model: `kvant "
      "calibrate -m 'model.gguf' --kv kvant-2bit` calibrates it\n";
  const std::size_t at = run_once.err.find(line);
  ASSERT_NE(at, std::string::npos) << run_once.err;
  EXPECT_EQ(run_once.err.find("kvant-2bit", at + line.size()), std::string::npos) << run_once.err;
  EXPECT_FALSE(std::filesystem::exists(path("cache"))) << "something was calibrated";
  const auto json = nlohmann::json::parse(read("run.json"));
  EXPECT_EQ(json["recipe"], "uniform-2bit");
  EXPECT_EQ(json["asked"], "kvant-2bit");
  const auto& plan = json["plan"];
  EXPECT_EQ(plan["calibration"], "not calibrated");
  EXPECT_EQ(plan["rows"][0]["format"], "tcq2");
}

TEST_F(Uncalibrated, EvalBenchAndInfoNameTheRecipeThatServes) {
  const Outcome eval =
      run("eval -m model.gguf -t 1 -f text.txt -c 512 --chunks 1 --kv kvant-3bit,kivi-2bit --json eval.json");
  ASSERT_EQ(eval.code, 0) << eval.err;
  EXPECT_NE(eval.out.find("uniform-3bit  "), std::string::npos) << eval.out;
  const auto rows = nlohmann::json::parse(read("eval.json"))["results"];
  EXPECT_EQ(rows[1]["recipe"], "uniform-3bit");
  EXPECT_EQ(rows[1]["asked"], "kvant-3bit");
  EXPECT_EQ(rows[1]["calibration"], "not calibrated");
  EXPECT_EQ(rows[2]["recipe"], "kivi-2bit");
  EXPECT_EQ(rows[2]["asked"], "kivi-2bit");
  EXPECT_EQ(rows[2]["calibration"], "not needed");
  const Outcome bench = run("bench -m model.gguf -t 1 -d 0 -p 8 -n 2 -r 1 --kv kvant-4bit --json bench.json");
  EXPECT_NE(bench.out.find("uniform-4bit"), std::string::npos) << bench.out << bench.err;
  EXPECT_EQ(nlohmann::json::parse(read("bench.json"))["results"][0]["asked"], "kvant-4bit");
  const Outcome info = run("info -m model.gguf --kv kvant-4bit -c 1000");
  EXPECT_NE(info.out.find("recipe: uniform-4bit\n"), std::string::npos) << info.out << info.err;
  EXPECT_NE(info.out.find("not calibrated: used in place of kvant-4bit: every layer"), std::string::npos)
      << info.out;
  EXPECT_NE(info.out.find("tcq4"), std::string::npos) << info.out;
  EXPECT_FALSE(std::filesystem::exists(path("cache")));
}

// Each command must find the constants that `calibrate` wrote, whatever weights and backend the command uses.
TEST_F(Uncalibrated, NoMoreOnceCalibrated) {
  const std::string kv = "--kv 'k=tok2g32,v=tok2g32,budget=4,ladder=tok2g32+tok4g32+tok8g32' ";
  const Outcome made = run("calibrate -m model.gguf -t 1 -f text.txt --samples 2 --length 128 " + kv);
  ASSERT_EQ(made.code, 0) << made.err;
  const Outcome eval = run("eval -m model.gguf -t 1 -f text.txt -c 256 --chunks 1 --json eval.json " + kv);
  ASSERT_EQ(eval.code, 0) << eval.err;
  EXPECT_EQ(nlohmann::json::parse(read("eval.json"))["results"][1]["calibration"], "calibrated");
  for (const char* command : {"run --raw -p abc -n 2 ", "info -c 1000 ", "bench -d 0 -p 4 -n 1 -r 1 "}) {
    const Outcome used = run(command + ("-m model.gguf -t 1 -v " + kv));
    EXPECT_EQ(used.code, 0) << used.err;
    EXPECT_EQ((used.out + used.err).find("not calibrated"), std::string::npos) << command;
    EXPECT_NE((used.out + used.err).find("calibrated"), std::string::npos) << command;
  }
  // The file has the same header as the calibrated model but other weights.
  TinyModel tuned;
  tuned.seed = 9;
  TinyModelWriter(tuned).write(path("tuned.gguf"));
  const Outcome other = run("info -m tuned.gguf -c 1000 " + kv);
  EXPECT_NE(other.out.find("not calibrated"), std::string::npos) << other.out;
}

TEST_F(Uncalibrated, ASessionThatBeganBeforeTheCalibrationContinuesWithItsRecipe) {
  const std::string kv = "--kv 'k=tok2g32,v=tok2g32,budget=4,ladder=tok2g32+tok4g32+tok8g32' ";
  const std::string chat = "run -m model.gguf -t 1 -p abc -n 4 --json run.json " + kv;
  ASSERT_EQ(run(chat + "--session early.session").code, 0);
  const auto uncalibrated = nlohmann::json::parse(read("run.json"))["recipe"];
  const Outcome made = run("calibrate -m model.gguf -t 1 -f text.txt --samples 2 --length 128 " + kv);
  ASSERT_EQ(made.code, 0) << made.err;
  const Outcome more = run(chat + "--session early.session");
  ASSERT_EQ(more.code, 0) << more.err;
  EXPECT_NE(more.err.find("began before the calibration"), std::string::npos) << more.err;
  EXPECT_EQ(nlohmann::json::parse(read("run.json"))["recipe"], uncalibrated);
  EXPECT_GT(nlohmann::json::parse(read("run.json"))["session_tokens"], 0);
  // New sessions begin with the calibration.
  ASSERT_EQ(run(chat + "--session late.session").code, 0);
  EXPECT_NE(nlohmann::json::parse(read("run.json"))["recipe"], uncalibrated);
  std::filesystem::remove_all(path("cache"));
  const Outcome missing = run(chat + "--session late.session");
  EXPECT_EQ(missing.code, 2);
  EXPECT_NE(missing.err.find("of another recipe"), std::string::npos) << missing.err;
}

TEST_F(Uncalibrated, RecipesThatNeedConstantsAreCalibratedOnFirstUseByOneMethod) {
  write("long.txt", std::string(7, ' ') + read("text.txt") + read("text.txt"));
  const Outcome refused = run("calibrate -m model.gguf -t 1 --backend cpu --kv vecinfer-2bit");
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("--backend reference"), std::string::npos) << refused.err;
  const Outcome info = run("info -m model.gguf -c 1000 --kv vecinfer-2bit");
  ASSERT_EQ(info.code, 0) << info.err;
  EXPECT_NE(info.out.find("calibrated on first use"), std::string::npos) << info.out;
}

TEST_F(Uncalibrated, ASampledMetricIsMadeOnceAndServesEveryCommandUnderItsName) {
  const std::string kv = "-m model.gguf -t 1 --kv uniform-4bit,encode=sampled ";
  const Outcome info = run("info -c 1000 " + kv);
  EXPECT_NE(info.out.find("calibrated on first use"), std::string::npos) << info.out;
  const Outcome first = run("run --raw -f text.txt -n 4 -v --json run.json " + kv);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_NE(first.err.find("calibrating once into"), std::string::npos) << first.err;
  EXPECT_NE(first.err.find("weighted by the queries of a short text"), std::string::npos) << first.err;
  EXPECT_EQ(nlohmann::json::parse(read("run.json"))["recipe"], "uniform-4bit,encode=sampled");
  const Outcome eval = run("eval -f text.txt -c 512 --chunks 1 --json eval.json " + kv);
  ASSERT_EQ(eval.code, 0) << eval.err;
  EXPECT_EQ(eval.err.find("calibrating"), std::string::npos) << eval.err;
  const auto row = nlohmann::json::parse(read("eval.json"))["results"][1];
  EXPECT_EQ(row["recipe"], "uniform-4bit,encode=sampled");
  EXPECT_EQ(row["calibration"], "calibrated");
  const Outcome refused = run("run --raw -p abc -n 1 -m model.gguf --kv kvant-4bit,encode=sampled");
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("uniform-4bit,encode=sampled"), std::string::npos) << refused.err;
}

}  // namespace
}  // namespace kvant
