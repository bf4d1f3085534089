#include <algorithm>
#include <cstdio>

#include "format/nearest_centroid.h"
#include "format/test_pages.h"

namespace kvant::vq_test {
namespace {

constexpr const char* kPattern = "[n]vq-d<X>b<Y>|[n]pq-d<X>b<Y>";

struct Shape {
  std::string kind;
  int dim = 0;
  int bits = 0;

  explicit Shape(const std::string& name) : kind(name.substr(0, name.find('-'))) {
    std::sscanf(name.c_str() + name.find('-'), "-d%db%d", &dim, &bits);
  }
  bool has_gains() const { return kind.starts_with('n'); }
};

double squared_distance(const double* x, const float* c, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += (x[i] - c[i]) * (x[i] - c[i]);
  return sum;
}

// Returns the squared distance to the nearest of n centroids, in double precision.
double nearest_distance(const double* x, const float* centroids, int n, int dim) {
  double best = 1e300;
  for (int c = 0; c < n; ++c) best = std::min(best, squared_distance(x, centroids + c * dim, dim));
  return best;
}

// Checks one token of a page against a search of the whole codebook in double precision.
void check_token(const TestFormat& test, const std::vector<float>& values, const std::vector<std::byte>& page,
                 const std::vector<float>& decoded, int token) {
  const Shape shape(test.format().name());
  const int d = test.d();
  const int n_codes = d / shape.dim;
  const std::span<const float> codebook = test.context().constants.find("codebook/" + test.format().name());
  std::vector<double> x(values.begin() + token * d, values.begin() + (token + 1) * d);
  double gain = 1;
  if (shape.has_gains()) {
    double length = 0;
    for (const double value : x) length += value * value;
    for (double& value : x) value /= std::sqrt(length);
    gain = f16_at(page.data() + page.size() - 2 * (kPageTokens - token));
  }
  for (int sub = 0; sub < n_codes; ++sub) {
    const int code =
        code_from_stream(page.data(), static_cast<std::size_t>(token) * n_codes + sub, shape.bits);
    const float* centroids =
        codebook.data() +
        (shape.kind.ends_with("pq") ? static_cast<std::ptrdiff_t>(sub) * (shape.dim << shape.bits) : 0);
    const float* centroid = centroids + code * shape.dim;
    const double* vector = x.data() + sub * shape.dim;
    ASSERT_LE(squared_distance(vector, centroid, shape.dim),
              nearest_distance(vector, centroids, 1 << shape.bits, shape.dim) + 1e-4);
    for (int i = 0; i < shape.dim; ++i) {
      ASSERT_EQ(decoded[token * d + sub * shape.dim + i], static_cast<float>(centroid[i] * gain));
    }
  }
}

TEST(Codebooks, TakeTheBitsOfTheDesignsTable) {
  for (const std::string& name : members_of(kPattern)) {
    const Shape shape(name);
    for (const int d : kTestHeadDims) {
      const double gain = shape.has_gains() ? 16.0 / d : 0;
      EXPECT_DOUBLE_EQ(find_format(name)->bits(d), static_cast<double>(shape.bits) / shape.dim + gain)
          << name;
    }
  }
  EXPECT_DOUBLE_EQ(find_format("vq-d8b12")->bits(128), 1.5);
  EXPECT_DOUBLE_EQ(find_format("nvq-d4b8")->bits(64), 2.25);
  EXPECT_DOUBLE_EQ(find_format("npq-d4b8")->bits(128), 2.125);  // as NOVA-KV prints for K
  EXPECT_DOUBLE_EQ(find_format("vq-d8b10")->bits(80), 1.25);    // The 100 bits of a token end inside a byte.
}

TEST(Codebooks, NameTheConstantTheyNeedAndItsSize) {
  EXPECT_EQ(find_format("vq-d4b8")->needed_constants(), std::vector<std::string>{"codebook/vq-d4b8"});
  EXPECT_EQ(find_format("vq-d4b8")->constant_size(64), 256U * 4);
  EXPECT_EQ(find_format("nvq-d8b10")->constant_size(128), 1024U * 8);
  EXPECT_EQ(find_format("pq-d4b8")->constant_size(64), 16U * 256 * 4);
}

TEST(Codebooks, SayHowTheyAreTrained) {
  for (const std::string& name : format_names()) {
    const Format& format = *find_format(name);
    const auto shape = format.codebook_shape();
    const std::vector<std::string> codebook{"codebook/" + name};
    ASSERT_EQ(shape.has_value(), format.needed_constants() == codebook) << name;
    if (!shape.has_value()) continue;
    const std::size_t books = shape->per_sub_space ? 64 / shape->dim : 1;
    EXPECT_EQ(books * shape->centroids * shape->dim, format.constant_size(64)) << name;
    EXPECT_EQ(shape->unit_vectors, name.starts_with('n')) << name;
  }
}

TEST(Codebooks, GiveEachSubVectorItsNearestCentroid) {
  for (const std::string& name : members_of(kPattern)) {
    for (const int d : kTestHeadDims) {
      const TestFormat test(name, d);
      SCOPED_TRACE(test.label());
      const std::vector<float> values = gaussian_values(d, 1);
      const std::vector<std::byte> page = test.encode(values);
      const std::vector<float> decoded = test.decode(page);
      for (const int token : {0, 7, 31, 32, 90, 127}) {
        check_token(test, values, page, decoded, token);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Codebooks, GiveBackTheirOwnCentroids) {
  for (const char* name : {"vq-d4b10", "pq-d8b8", "vq-d2b8"}) {
    const TestFormat test(name, 64);
    const std::vector<float> once = test.decode(test.encode(gaussian_values(64, 2)));
    EXPECT_EQ(test.decode(test.encode(once)), once) << name;
  }
}

TEST(Codebooks, ChooseTheGainOfLeastError) {
  const TestFormat test("nvq-d4b8", 96);
  const std::vector<float> values = key_like_values(96, 3);
  const std::vector<float> decoded = test.decode(test.encode(values));
  for (int token = 0; token < kPageTokens; ++token) {
    // The loop sums the errors with the stored gain, with a gain 1 % smaller, and with a gain 1 % larger.
    double errors[3] = {};
    for (int i = token * 96; i < (token + 1) * 96; ++i) {
      for (int k = 0; k < 3; ++k) {
        const double factor = k == 0 ? 1 : k == 1 ? 0.99 : 1.01;
        errors[k] += std::pow(values[i] - factor * decoded[i], 2);
      }
    }
    ASSERT_LT(errors[0], errors[1]);
    ASSERT_LT(errors[0], errors[2]);
  }
}

TEST(Codebooks, KeepTheLengthsOfTokensForNova) {
  const TestFormat test("npq-d4b8", 128);
  const std::vector<float> values = key_like_values(128, 3);
  const std::vector<std::byte> page = test.encode(values);
  for (int token = 0; token < kPageTokens; ++token) {
    double squares = 0;
    for (int i = token * 128; i < (token + 1) * 128; ++i) squares += double{values[i]} * values[i];
    const double gain = f16_at(page.data() + page.size() - 2 * (kPageTokens - token));
    EXPECT_NEAR(gain, std::sqrt(squares), 1.01 * f16_rounding(gain));
  }
}

TEST(Codebooks, ReachSixteenBitCodes) {
  const TestFormat test("vq-d8b16", 64);
  EXPECT_DOUBLE_EQ(test.format().bits(64), 2);
  const std::vector<float> values = gaussian_values(64, 4);
  const std::vector<std::byte> page = test.encode(values);
  check_token(test, values, page, test.decode(page), 77);
}

TEST(NearestCentroid, TakesTheFirstOfEqualCentroids) {
  std::vector<float> centroids(64 * 4, 9.0F);
  for (const int c : {5, 21, 40}) std::fill_n(centroids.begin() + c * 4, 4, 1.0F);
  const std::vector<float> vectors(3 * 4, 1.1F);
  for (const CentroidSearch& search : centroid_searches()) {
    std::uint16_t nearest[3];
    search.search(vectors.data(), 4, 3, 4, centroids.data(), 64, nearest);
    for (const std::uint16_t index : nearest) EXPECT_EQ(index, 5) << search.name;
  }
}

// Each instruction set must find a centroid that no other centroid beats by more than rounding.
TEST(NearestCentroid, IsAsNearAsTheNearestInDoublePrecision) {
  constexpr int kVectors = 101, kStride = 11;
  for (const int dim : {2, 4, 8}) {
    for (const int n_centroids : {16, 48, 4096 + 16}) {
      const std::vector<float> vectors = normal_numbers(kVectors * kStride, dim);
      const std::vector<float> centroids = normal_numbers(n_centroids * dim, n_centroids);
      const auto distance = [&](int i, int c) {
        double sum = 0;
        for (int j = 0; j < dim; ++j) {
          const double x = double{vectors[i * kStride + j]} - centroids[c * dim + j];
          sum += x * x;
        }
        return sum;
      };
      for (const CentroidSearch& search : centroid_searches()) {
        std::vector<std::uint16_t> nearest(kVectors);
        search.search(vectors.data(), kStride, kVectors, dim, centroids.data(), n_centroids, nearest.data());
        for (int i = 0; i < kVectors; ++i) {
          double least = distance(i, 0);
          for (int c = 1; c < n_centroids; ++c) least = std::min(least, distance(i, c));
          ASSERT_LT(nearest[i], n_centroids);
          EXPECT_LE(distance(i, nearest[i]), least + 1e-5)
              << search.name << ", vector " << i << " of dimension " << dim;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvant::vq_test
