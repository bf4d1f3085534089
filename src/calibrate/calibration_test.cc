#include "calibrate/calibration.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "calibrate/codebook.h"
#include "calibrate/needs.h"
#include "calibrate/sealed_gguf.h"

namespace kvant::calibration_test {
namespace {

Geometry geometry() {
  Geometry g;
  g.model = "test";
  g.n_layers = 1;
  g.n_heads = 2;
  g.n_kv_heads = 1;
  g.head_dim = 32;
  g.softmax_scale = 0.2F;
  g.sliding_window.assign(1, 0);
  return g;
}

Recipe recipe(const std::string& text) {
  auto parsed = parse_recipe(text);
  EXPECT_TRUE(parsed.ok());
  return *parsed;
}

std::vector<float> ramp(std::size_t n) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = 0.013F * static_cast<float>(i) - 1.7F;
  return values;
}

TEST(ReadCalibration, CallsTheFileWhatItShouldBe) {
  const auto missing = read_calibration("/no/such/file");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().message,
            "cannot open the file of constants '/no/such/file': No such file or directory");
}

class CalibrationFile : public ::testing::Test {
 protected:
  CalibrationFile() {
    made_.model = "tiny 1M F32";
    made_.fingerprint = "0123456789abcdef";
    made_.text_hash = 0xfedcba9876543210U;
    made_.settings = {.samples = 7,
                      .length = 20,
                      .rows = 9,
                      .passages = 3,
                      .adapters_end_early = false,
                      .self = true,
                      .seed = 11};
    made_.method = {.weights = "f32", .backend = "cpu"};
    made_.quality = {{"k=vq-d4b8,v=bf16", 0.25, 0.5, 0.125}};
    made_.constants.set(0, 0, Side::key, "smooth", ramp(32));
    made_.constants.set(0, 0, Side::key, "smooth+hadamard:codebook/vq-d4b8", rounded_to_int8(ramp(1024)));
    made_.constants.set(0, 0, Side::value, ":codebook/vq-d4b6", rounded_to_f16(ramp(256)));
  }
  ~CalibrationFile() override { std::filesystem::remove(path_); }

  std::string message() const {
    const auto read = read_calibration(path_);
    return read.ok() ? "" : read.error().message;
  }

  Calibration made_;
  const std::string path_ =
      (std::filesystem::temp_directory_path() / ("kvant_calibration_" + std::to_string(getpid()) + ".gguf"))
          .string();
};

TEST_F(CalibrationFile, GivesBackEverything) {
  ASSERT_TRUE(write_calibration(made_, path_).ok());
  const auto read = read_calibration(path_);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->model, made_.model);
  EXPECT_EQ(read->fingerprint, made_.fingerprint);
  EXPECT_EQ(read->text_hash, made_.text_hash);
  EXPECT_EQ(read->settings, made_.settings);
  EXPECT_EQ(read->method, made_.method);
  ASSERT_EQ(read->quality.size(), 1U);
  EXPECT_EQ(read->quality[0].recipe, "k=vq-d4b8,v=bf16");
  EXPECT_EQ(read->quality[0].value_error, 0.5);
  EXPECT_EQ(read->quality[0].output_error, 0.125);
  int n = 0;
  made_.constants.for_each(
      [&](int layer, int head, Side side, const std::string& name, const std::vector<float>& values) {
        const auto found = read->constants.find(layer, head, side, name);
        EXPECT_EQ(std::vector<float>(found.begin(), found.end()), values) << name;
        ++n;
      });
  EXPECT_EQ(n, 3);
}

TEST_F(CalibrationFile, StoresCodebooksInAByteForEachNumber) {
  made_.constants = {};
  made_.constants.set(0, 0, Side::key, "c", rounded_to_int8(ramp(100000)));
  ASSERT_TRUE(write_calibration(made_, path_).ok());
  EXPECT_LT(std::filesystem::file_size(path_), 102000U);
}

TEST_F(CalibrationFile, RefusesEveryDamage) {
  ASSERT_TRUE(write_calibration(made_, path_).ok());
  std::ifstream file(path_, std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(file)), {});
  for (std::size_t at = 0; at < good.size(); at += 37) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    std::ofstream(path_, std::ios::binary) << bad;
    EXPECT_NE(message(), "") << "byte " << at;
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{10}, good.size() / 2, good.size() - 1}) {
    std::ofstream(path_, std::ios::binary) << good.substr(0, size);
    EXPECT_NE(message(), "") << size;
  }
  std::filesystem::remove(path_);
  EXPECT_NE(message(), "");
}

TEST_F(CalibrationFile, RefusesOtherVersions) {
  made_.method.algorithm = kCalibrationAlgorithm + 1;
  ASSERT_TRUE(write_calibration(made_, path_).ok());
  const std::string both = "version " + std::to_string(kCalibrationAlgorithm + 1) +
                           " of the algorithm, and this program's is " +
                           std::to_string(kCalibrationAlgorithm);
  EXPECT_NE(message().find(both), std::string::npos) << message();
  SealedGguf earlier;  // the version whose fingerprints did not cover the weights
  earlier.set("general.type", "kvant-calibration");
  earlier.set("kvant.calibration.version", std::int64_t{1});
  earlier.set("kvant.calibration.fingerprint", made_.fingerprint);
  const float one = 1;
  earlier.add_f32("0", {&one, 1});
  ASSERT_TRUE(earlier.write(path_).ok());
  EXPECT_NE(message().find("did not distinguish models with other weights: run kvant calibrate again"),
            std::string::npos)
      << message();
}

TEST_F(CalibrationFile, ServesTheRecipesThatItWasMadeForAndNoOther) {
  const Geometry g = geometry();
  const Recipe fits = recipe("k=smooth+hadamard:vq-d4b8,v=bf16,sink=4");
  const auto constants = constants_from(made_, fits, g, made_.fingerprint, path_);
  ASSERT_TRUE(constants.ok()) << constants.error().message;
  EXPECT_EQ((*constants)->find(0, 0, Side::key, "smooth").size(), 32U);
  EXPECT_EQ((*constants)->find(0, 0, Side::key, "codebook/vq-d4b8").size(), 1024U);

  const auto refusal = [&](const std::string& text, const std::string& fingerprint) {
    const auto refused = constants_from(made_, recipe(text), g, fingerprint, "FILE");
    return refused.ok() ? "" : refused.error().message;
  };
  EXPECT_NE(refusal("k=smooth+hadamard:vq-d4b8,v=bf16,sink=4", "other")
                .find("another model (tiny 1M F32, fingerprint 0123456789abcdef, not other)"),
            std::string::npos);
  // Without a sink, or after other transforms, a recipe needs other constants.
  EXPECT_NE(refusal("k=smooth+hadamard:vq-d4b8,v=bf16", made_.fingerprint).find("'nosink/smooth'"),
            std::string::npos);
  EXPECT_NE(
      refusal("k=hadamard:vq-d4b8,v=bf16,sink=4", made_.fingerprint).find("'hadamard:codebook/vq-d4b8'"),
      std::string::npos);
  const auto none = constants_from(made_, recipe("kivi-2bit"), g, "other", "FILE");
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(*none, nullptr);
}

TEST(Needs, AreMergedWhereTheValuesAreTheSame) {
  const Recipe recipes[] = {recipe("k=smooth+hadamard:vq-d4b8,v=bf16,sink=4"),
                            recipe("k=smooth+hadamard:vq-d4b12,v=vq-d4b8,sink=8"),
                            recipe("k=hadamard:vq-d4b8,v=vq-d4b8")};
  const std::vector<HeadNeeds> needs = needs_of(recipes, geometry());
  ASSERT_EQ(needs.size(), 4U);
  EXPECT_EQ(needs[0].constants.size(), 3U);  // the smoothing factors and two codebooks
  EXPECT_EQ(needs[0].constants[0].stored, "smooth");
  EXPECT_EQ(needs[0].constants[2].stored, "smooth+hadamard:codebook/vq-d4b12");
  EXPECT_EQ(needs[1].constants[0].stored, "nosink/hadamard:codebook/vq-d4b8");
  EXPECT_EQ(needs[2].side, Side::value);
  EXPECT_TRUE(needs[2].without_sink);
  EXPECT_FALSE(needs[3].without_sink);
}

TEST(Needs, OfABudgetAreNotRequired) {
  for (const Recipe& r : builtin_recipes()) {
    if (!r.name.starts_with("kvant-")) continue;
    EXPECT_TRUE(needs_calibration(r, geometry())) << r.name;
    EXPECT_FALSE(requires_calibration(r, geometry())) << r.name;
  }
  EXPECT_TRUE(requires_calibration(recipe("vecinfer-2bit"), geometry()));
  EXPECT_TRUE(
      requires_calibration(recipe("k=vq-d4b8,v=vq-d4b8,budget=2,ladder=vq-d4b8+vq-d4b4"), geometry()));
  EXPECT_FALSE(requires_calibration(recipe("kivi-2bit"), geometry()));
}

TEST(Needs, AreNoneForRecipesOfFixedFormats) {
  for (const Recipe& r : builtin_recipes()) {
    const bool learns = r.name.starts_with("vecinfer") || r.name.starts_with("million");
    const bool fixed = r.name.starts_with("kivi") || r.name.starts_with("turbo2");
    if (learns || fixed) {
      EXPECT_EQ(needs_calibration(r, geometry()), learns) << r.name;
    }
  }
}

}  // namespace
}  // namespace kvant::calibration_test
