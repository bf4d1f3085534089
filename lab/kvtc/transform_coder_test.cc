#include "kvtc/transform_coder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/json_file.h"

namespace kvant {
namespace {

// Returns directions in which each pair of channels is turned by an angle, so the directions are orthonormal.
PrincipalDirections turned_pairs(int width) {
  PrincipalDirections learned;
  for (int c = 0; c < width; ++c) learned.mean.push_back(0.25F * static_cast<float>(c % 5));
  learned.directions.assign(static_cast<std::size_t>(width) * width, 0.0F);
  for (int i = 0; i < width; i += 2) {
    const double angle = 0.3 + i;
    float* first = &learned.directions[static_cast<std::size_t>(i) * width + i];
    float* second = first + width;
    first[0] = second[1] = static_cast<float>(std::cos(angle));
    first[1] = static_cast<float>(std::sin(angle));
    second[0] = -first[1];
  }
  return learned;
}

std::vector<float> normal_rows(int n, int width) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<std::size_t>(n) * width);
  for (float& x : rows) x = normal(random);
  return rows;
}

// Compares the coder with explicit sums of components, which another coder with equal groups codes and which
// are then projected back.
TEST(TransformCoder, CodesWhatPrincipalDirectionsMakeOfRows) {
  constexpr int kWidth = 24, kRows = 7, kComponents = 20;
  const PrincipalDirections learned = turned_pairs(kWidth);
  const std::vector<ComponentGroup> groups = {{4, 8}, {16, 4}};
  const std::vector<float> values = normal_rows(kRows, kWidth);
  std::vector<float> coded = values;
  TransformCoder coder(learned, groups);
  coder.code({coded.data(), kRows, kWidth}, /*n_threads=*/3);
  ComponentCoder components(groups);
  for (int t = 0; t < kRows; ++t) {
    const float* x = &values[static_cast<std::size_t>(t) * kWidth];
    std::vector<float> of_token(kComponents);
    for (int i = 0; i < kComponents; ++i) {
      double sum = 0;
      for (int c = 0; c < kWidth; ++c)
        sum +=
            (double{x[c]} - learned.mean[c]) * learned.directions[static_cast<std::size_t>(i) * kWidth + c];
      of_token[i] = static_cast<float>(sum);
    }
    components.code(of_token.data());
    for (int c = 0; c < kWidth; ++c) {
      double sum = learned.mean[c];
      for (int i = 0; i < kComponents; ++i)
        sum += double{of_token[i]} * learned.directions[static_cast<std::size_t>(i) * kWidth + c];
      EXPECT_NEAR(coded[static_cast<std::size_t>(t) * kWidth + c], sum, 1e-5);
    }
  }
  EXPECT_DOUBLE_EQ(coder.components().ideal_bits(), components.ideal_bits());
  EXPECT_EQ(coder.n_constants(), static_cast<std::size_t>(kWidth) * (1 + kComponents));
}

TEST(TransformCoder, ThreadsChangeNothing) {
  constexpr int kWidth = 16, kRows = 33;
  const PrincipalDirections learned = turned_pairs(kWidth);
  std::vector<float> one = normal_rows(kRows, kWidth), many = one;
  TransformCoder(learned, {{16, 2}}).code({one.data(), kRows, kWidth}, 1);
  TransformCoder(learned, {{16, 2}}).code({many.data(), kRows, kWidth}, 5);
  EXPECT_EQ(one, many);
}

TEST(PrincipalDirections, AreReadFromTheirFile) {
  const std::string path = ::testing::TempDir() + "kvtc.directions";
  std::vector<float> numbers(2 * (3 + 9));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
  ASSERT_TRUE(write_whole_file(path, {std::as_bytes(std::span(numbers))}).ok());
  const auto sides = read_principal_directions(path, 3);
  ASSERT_TRUE(sides.ok());
  EXPECT_EQ((*sides)[0].mean, (std::vector<float>{0, 1, 2}));
  EXPECT_EQ((*sides)[1].mean[0], 12);
  EXPECT_EQ((*sides)[1].directions.back(), 23);
  const auto refused = read_principal_directions(path, 4);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("of 4 channels"), std::string::npos);
  EXPECT_FALSE(read_principal_directions(path + ".none", 3).ok());
}

}  // namespace
}  // namespace kvant
