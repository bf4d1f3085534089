#include "calibrate/codebook.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/float16.h"
#include "calibrate/codebook_storage.h"
#include "calibrate/learn_head.h"

namespace kvant {
namespace {

std::vector<float> random_values(int n, int d, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(n) * d);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = normal(random) * (i % d < 8 ? 3.0F : 1.0F);
  return values;
}

TEST(Codebook, HasTheSizeThatTheFormatNeeds) {
  const std::vector<float> values = random_values(300, 64, 1);
  for (const std::string& name : format_names()) {
    const Format& format = *find_format(name);
    const auto shape = format.codebook_shape();
    if (!shape.has_value() || shape->centroids > 256) continue;
    const Codebook book = learn_codebook(*shape, {values.data(), 300, 64}, 1);
    EXPECT_EQ(book.centroids.size(), format.constant_size(64)) << name;
    EXPECT_LE(book.error_after, book.error_before) << name;
    EXPECT_GT(book.error_after, 0) << name;
  }
}

// The relative error that k-means reports must equal the error that the format makes.
TEST(Codebook, LeavesTheErrorThatItSays) {
  const int d = 64;
  const std::vector<float> values = random_values(kPageTokens, d, 2);
  const Format& format = *find_format("vq-d4b8");
  const Codebook book = learn_codebook(*format.codebook_shape(), {values.data(), kPageTokens, d}, 1);
  Constants constants;
  constants.set(0, 0, Side::key, "codebook/vq-d4b8", book.centroids);
  const PageContext context{d, {&constants, 0, 0, Side::key}};
  std::vector<std::byte> page(format.page_bytes(d));
  std::vector<float> decoded(values.size());
  format.encode(values.data(), {}, context, page.data());
  format.decode(page.data(), kPageTokens, context, decoded.data());
  double difference = 0;
  double energy = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    difference += std::pow(static_cast<double>(values[i]) - decoded[i], 2);
    energy += static_cast<double>(values[i]) * values[i];
  }
  EXPECT_NEAR(difference / energy, book.error_after, 1e-5);
}

TEST(Codebook, OfUnitVectorsDoesNotSeeTheGain) {
  const int d = 32;
  std::vector<float> values = random_values(200, d, 3);
  const CodebookShape shape{4, 32, false, true};
  const Codebook book = learn_codebook(shape, {values.data(), 200, d}, 1);
  for (float& x : values) x *= 4.0F;
  EXPECT_EQ(learn_codebook(shape, {values.data(), 200, d}, 1).centroids, book.centroids);
}

TEST(Codebook, OfZerosIsZero) {
  const std::vector<float> values(64 * 32);
  for (const bool unit : {false, true}) {
    const Codebook book = learn_codebook({4, 16, false, unit}, {values.data(), 64, 32}, 1);
    for (const float x : book.centroids) EXPECT_EQ(x, 0.0F);
  }
}

TEST(Rounding, ToInt8IsWithinHalfAStepAndRepeatable) {
  const std::vector<float> values = random_values(100, 8, 4);
  const std::vector<float> rounded = rounded_to_int8(values);
  const float scale = int8_scale(values);
  EXPECT_EQ(int8_scale(rounded), scale);
  EXPECT_EQ(rounded_to_int8(rounded), rounded);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_LE(std::abs(values[i] - rounded[i]), scale * 0.5001F);
    EXPECT_EQ(rounded[i], scale * std::round(rounded[i] / scale));
    EXPECT_LE(std::abs(rounded[i] / scale), 127.001F);
  }
}

TEST(Rounding, ToF16SaturatesAndIsExactOnItself) {
  const std::vector<float> values{1.0F, 0.1F, 1e6F, -1e6F, 1e-9F};
  const std::vector<float> rounded = rounded_to_f16(values);
  EXPECT_EQ(rounded[0], 1.0F);
  EXPECT_NEAR(rounded[1], 0.1F, 1e-4);
  EXPECT_EQ(rounded[2], kF16Max);
  EXPECT_EQ(rounded[3], -kF16Max);
  EXPECT_EQ(rounded_to_f16(rounded), rounded);
}

// The mean cost of both heads decides for both heads, separately for each side.
TEST(CodebookStorage, IsInt8WhereThatIsCheapOnAverage) {
  const std::vector<float> centroids{1.0F, 0.3F, -0.2F, 0.011F};
  const auto stored = [&](float cost_of_first, float cost_of_second) {
    Constants constants;
    const float costs[] = {cost_of_first, cost_of_second};
    for (int head = 0; head < 2; ++head) {
      constants.set(0, head, Side::key, ":codebook/x", centroids);
      constants.set(0, head, Side::key, std::string(":codebook/x") + kErrorsSuffix,
                    {0.2F, 0.1F, 0.1F * (1 + costs[head])});
    }
    constants.set(0, 0, Side::value, ":other", centroids);
    round_codebooks(constants);
    const auto other = constants.find(0, 0, Side::value, ":other");
    EXPECT_EQ(std::vector<float>(other.begin(), other.end()), centroids);
    const auto found = constants.find(0, 1, Side::key, ":codebook/x");
    return std::vector<float>(found.begin(), found.end());
  };
  EXPECT_EQ(stored(0.00F, 0.05F), rounded_to_int8(centroids));
  EXPECT_EQ(stored(0.05F, 0.02F), rounded_to_f16(centroids));
}

}  // namespace
}  // namespace kvant
