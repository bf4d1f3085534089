#include "transform/transform.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <span>

#include "base/testing/emulation.h"
#include "transform/walsh_hadamard.h"

namespace kvant {
namespace {

constexpr int kAllHeadDims[] = {64, 80, 96, 128, 256, 512};
constexpr std::span kHeadDims(kAllHeadDims, testing::kEmulated ? 2 : std::size(kAllHeadDims));
using Names = std::vector<std::string>;

std::vector<float> random_values(std::size_t n, unsigned seed, float low, float high) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(n);
  for (float& x : values) x = uniform(random);
  return values;
}

// Returns orthonormal rows [d, d] by Gram-Schmidt on random rows, in double precision.
std::vector<float> random_basis(int d, unsigned seed) {
  const auto start = random_values(static_cast<std::size_t>(d) * d, seed, -1, 1);
  std::vector<double> basis(start.begin(), start.end());
  for (int i = 0; i < d; ++i) {
    double* row = &basis[static_cast<std::size_t>(i) * d];
    for (int j = 0; j <= i; ++j) {
      const double* other = &basis[static_cast<std::size_t>(j) * d];
      const double product = std::inner_product(row, row + d, other, 0.0);
      const double factor = j < i ? -product : 1 / std::sqrt(product) - 1;
      for (int c = 0; c < d; ++c) row[c] += factor * other[c];
    }
  }
  return {basis.begin(), basis.end()};
}

std::vector<float> constants_of_step(const std::string& name, int d, unsigned seed) {
  if (name == "pca" || name == "oscar") return random_basis(d, seed);
  if (name == "nova") {  // a basis with rows of unequal lengths
    std::vector<float> matrix = random_basis(d, seed);
    const std::vector<float> lengths = random_values(d, seed + 1, 0.5F, 2.0F);
    for (std::size_t i = 0; i < matrix.size(); ++i) matrix[i] *= lengths[i / d];
    return matrix;
  }
  return random_values(d, seed, 0.2F, 4.0F);
}

// Returns the constants that the steps of `names` need, for layer 0, KV head 0 and both sides.
Constants constants_for(const Names& names, int d) {
  Constants constants;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!find_transform_kind(names[i])->calibrated) continue;
    for (Side side : kSides) {
      constants.set(0, 0, side, transform_constant_name(names, i),
                    constants_of_step(names[i], d, static_cast<unsigned>(7 + i)));
    }
  }
  return constants;
}

Transform make_transform(const Names& names, int d, const Constants& constants, Side side) {
  auto made = Transform::make(names, d, HeadConstants{&constants, 0, 0, side});
  EXPECT_TRUE(made.ok()) << made.error().message;
  return std::move(made).value();
}

double dot(const float* a, const float* b, int d) {
  double sum = 0;
  for (int i = 0; i < d; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// Returns every kind alone, and the orders in which recipes combine kinds.
std::vector<Names> compositions() {
  std::vector<Names> all;
  for (const std::string& name : transform_names()) all.push_back({name});
  all.push_back({"smooth", "hadamard"});
  all.push_back({"hadamard", "smooth"});
  all.push_back({"mean", "scale", "rhadamard"});
  all.push_back({"hadamard", "mean", "smooth"});
  all.push_back({"mean", "pca", "scale"});
  all.push_back({"mean", "nova"});
  return all;
}

std::string label(const Names& names, int d) {
  return transform_constant_name(names, names.size() - 1) + " at d = " + std::to_string(d);
}

// Computes softmax(q k^T / sqrt(d)) v in double precision. scores_offset[i] is added to every unscaled score
// of query i.
std::vector<double> attention(const std::vector<float>& q, const std::vector<float>& k,
                              const std::vector<float>& v, const std::vector<float>& scores_offset, int d) {
  const int n_q = static_cast<int>(q.size()) / d;
  const int n_k = static_cast<int>(k.size()) / d;
  std::vector<double> out(q.size());
  for (int r = 0; r < n_q; ++r) {
    std::vector<double> weights(n_k);
    double sum = 0;
    for (int t = 0; t < n_k; ++t) {
      const double product = dot(&q[static_cast<std::size_t>(r) * d], &k[static_cast<std::size_t>(t) * d], d);
      weights[t] = std::exp((product + scores_offset[r]) / std::sqrt(d));
      sum += weights[t];
    }
    for (int t = 0; t < n_k; ++t) {
      for (int i = 0; i < d; ++i) {
        out[static_cast<std::size_t>(r) * d + i] += weights[t] / sum * v[static_cast<std::size_t>(t) * d + i];
      }
    }
  }
  return out;
}

TEST(WalshHadamard, EqualsTheExplicitMatrix) {
  for (int d : {8, 16, 64, 80, 96, 128, 256, 512}) {
    const int order = hadamard_order(d);
    EXPECT_EQ(d % order, 0);
    EXPECT_NE(d % (2 * order), 0);
    const auto x = random_values(3 * static_cast<std::size_t>(d), 1, -1, 1);
    auto y = x;
    walsh_hadamard({y.data(), 3, d}, order);
    for (int r = 0; r < 3; ++r) {
      for (int j = 0; j < d; ++j) {
        double expected = 0;
        for (int i = 0; i < order; ++i) {
          const int sign = std::popcount(static_cast<unsigned>(i & (j % order))) % 2 == 0 ? 1 : -1;
          expected += sign * static_cast<double>(x[r * d + j / order * order + i]) / std::sqrt(order);
        }
        EXPECT_NEAR(y[r * d + j], expected, 1e-5) << "d " << d << " row " << r << " channel " << j;
      }
    }
  }
}

TEST(WalshHadamard, LeavesTheRestOfAStridedRowAlone) {
  std::vector<float> x(2 * 100, 5.0F);
  walsh_hadamard({x.data(), 2, 64, 100}, 64);
  EXPECT_NEAR(x[100], 5.0F * 8, 1e-4F);
  for (int i = 64; i < 100; ++i) EXPECT_EQ(x[i], 5.0F);
}

TEST(Transform, ComesBackFromForward) {
  for (int d : kHeadDims) {
    for (const Names& names : compositions()) {
      const Constants constants = constants_for(names, d);
      for (Side side : kSides) {
        const Transform transform = make_transform(names, d, constants, side);
        const auto x = random_values(5 * static_cast<std::size_t>(d), 2, -3, 3);
        auto y = x;
        transform.forward({y.data(), 5, d});
        EXPECT_NE(x, y) << label(names, d);
        transform.inverse({y.data(), 5, d});
        for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 2e-5) << label(names, d);
      }
    }
  }
}

TEST(Transform, KeepsScoresUpToTheOffset) {
  for (int d : kHeadDims) {
    for (const Names& names : compositions()) {
      const Constants constants = constants_for(names, d);
      const Transform transform = make_transform(names, d, constants, Side::key);
      const int n = 6;
      const auto k = random_values(static_cast<std::size_t>(n) * d, 3, -2, 2);
      const auto q = random_values(static_cast<std::size_t>(n) * d, 4, -2, 2);
      auto k_mapped = k;
      auto q_mapped = q;
      std::vector<float> offset(n, 99.0F);
      transform.forward({k_mapped.data(), n, d});
      transform.query({q_mapped.data(), n, d}, offset.data());
      auto q_back = q_mapped;
      transform.inverse_query({q_back.data(), n, d});
      for (std::size_t i = 0; i < q.size(); ++i) ASSERT_NEAR(q_back[i], q[i], 1e-4) << label(names, d);
      for (int r = 0; r < n; ++r) {
        const double expected =
            dot(&k[static_cast<std::size_t>(r) * d], &q[static_cast<std::size_t>(r) * d], d);
        const double got =
            dot(&k_mapped[static_cast<std::size_t>(r) * d], &q_mapped[static_cast<std::size_t>(r) * d], d) +
            offset[r];
        EXPECT_NEAR(got, expected, 1e-3) << label(names, d);
      }
    }
  }
}

TEST(Transform, ShiftsOnlyWhereTheKindSaysSo) {
  for (const TransformKind* kind : transform_kinds()) {
    const int d = 64;
    const Constants constants = constants_for({kind->name}, d);
    const Transform transform = make_transform({kind->name}, d, constants, Side::key);
    auto q = random_values(d, 5, 1, 2);
    float offset = 99;
    transform.query({q.data(), 1, d}, &offset);
    EXPECT_EQ(kind->shifts, offset != 0.0F) << kind->name;
  }
}

TEST(Transform, LeavesAttentionAsItWas) {
  for (int d : kHeadDims) {
    for (const Names& names : compositions()) {
      const Constants constants = constants_for(names, d);
      const Transform on_k = make_transform(names, d, constants, Side::key);
      const Transform on_v = make_transform(names, d, constants, Side::value);
      const int n_q = 3;
      const int n_k = 20;
      auto q = random_values(static_cast<std::size_t>(n_q) * d, 6, -1, 1);
      auto k = random_values(static_cast<std::size_t>(n_k) * d, 7, -1, 1);
      auto v = random_values(static_cast<std::size_t>(n_k) * d, 8, -1, 1);
      const std::vector<float> none(n_q, 0.0F);
      const auto expected = attention(q, k, v, none, d);

      on_k.forward({k.data(), n_k, d});
      on_v.forward({v.data(), n_k, d});
      on_k.query({q.data(), n_q, d}, nullptr);
      const auto mapped = attention(q, k, v, none, d);  // the offset is left out because softmax ignores it
      std::vector<float> out(mapped.begin(), mapped.end());
      on_v.inverse({out.data(), n_q, d});
      for (std::size_t i = 0; i < out.size(); ++i) {
        ASSERT_NEAR(out[i], expected[i], 2e-5) << label(names, d);
      }
    }
  }
}

TEST(Transform, WithoutStepsIsTheIdentity) {
  const Transform transform;
  EXPECT_TRUE(transform.identity());
  std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto before = x;
  float offset = 5;
  transform.forward({x.data(), 1, 8});
  transform.inverse({x.data(), 1, 8});
  transform.query({x.data(), 1, 8}, &offset);
  EXPECT_EQ(x, before);
  EXPECT_EQ(offset, 0.0F);
}

TEST(Transform, NamesConstantsByTheStepsBefore) {
  const Names names = {"hadamard", "smooth", "mean"};
  EXPECT_EQ(transform_constant_name(names, 0), "hadamard");
  EXPECT_EQ(transform_constant_name(names, 1), "hadamard+smooth");
  EXPECT_EQ(transform_constant_name(names, 2), "hadamard+smooth+mean");
}

TEST(Transform, AsksForCalibrationWhereConstantsAreMissing) {
  for (const TransformKind* kind : transform_kinds()) {
    const auto made = Transform::make(Names{kind->name}, 64, HeadConstants{nullptr, 3, 1, Side::value});
    EXPECT_EQ(made.ok(), !kind->calibrated) << kind->name;
    if (made.ok()) continue;
    EXPECT_NE(made.error().message.find("kvant calibrate"), std::string::npos);
    EXPECT_NE(made.error().message.find("layer 3 KV head 1 V"), std::string::npos);
  }
}

TEST(Transform, RefusesConstantsThatDoNotFit) {
  Constants constants;
  constants.set(0, 0, Side::key, "mean", std::vector<float>(80, 1.0F));
  constants.set(0, 0, Side::value, "mean", std::vector<float>(64, std::numeric_limits<float>::quiet_NaN()));
  for (Side side : kSides) {
    EXPECT_FALSE(Transform::make(Names{"mean"}, 64, HeadConstants{&constants, 0, 0, side}).ok());
  }
  EXPECT_FALSE(Transform::make(Names{"no-such-step"}, 64, HeadConstants{}).ok());
}

TEST(ChannelScaling, DoesNotBlowUpDeadChannels) {
  for (const char* name : {"smooth", "scale"}) {
    Constants constants;
    std::vector<float> factors(64, 0.0F);
    factors[5] = 8.0F;
    constants.set(0, 0, Side::key, name, factors);
    constants.set(0, 0, Side::value, name, std::vector<float>(64, 0.0F));
    std::vector<float> x(64, 1.0F);
    make_transform({name}, 64, constants, Side::key).forward({x.data(), 1, 64});
    EXPECT_FLOAT_EQ(x[5], 1 / 8.0F);
    EXPECT_FLOAT_EQ(x[6], 1 / 8e-3F);
    std::vector<float> y(64, 3.0F);
    make_transform({name}, 64, constants, Side::value).forward({y.data(), 1, 64});
    EXPECT_EQ(y, std::vector<float>(64, 3.0F));
  }
}

TEST(Amax, HasOneScaleForAllHeadsOfALayersSide) {
  Constants constants;
  constants.set(0, 0, Side::key, "amax", std::vector<float>(64, 7.0F));
  constants.set(0, 1, Side::key, "amax", std::vector<float>(64, 3.0F));
  constants.set(0, 2, Side::key, "amax", std::vector<float>(64, 896.0F));
  constants.set(0, 0, Side::value, "amax", std::vector<float>(64, 448.0F));
  constants.set(1, 0, Side::key, "amax", std::vector<float>(64, 0.0F));
  const auto after = [&](int layer, int head, Side side) {
    std::vector<float> x(64, 6.0F);
    auto made = Transform::make(Names{"amax"}, 64, HeadConstants{&constants, layer, head, side});
    EXPECT_TRUE(made.ok());
    made->forward({x.data(), 1, 64});
    return x[63];
  };
  for (const int head : {0, 1, 2}) EXPECT_EQ(after(0, head, Side::key), 3.0F) << head;
  EXPECT_EQ(after(0, 0, Side::value), 6.0F);
  EXPECT_EQ(after(1, 0, Side::key), 6.0F);  // calibration saw only zeros
}

TEST(Pca, PutsEachDirectionIntoItsChannel) {
  for (int d : {64, 80}) {
    const auto basis = random_basis(d, 9);
    Constants constants;
    constants.set(0, 0, Side::key, "pca", basis);
    auto rows = basis;
    make_transform({"pca"}, d, constants, Side::key).forward({rows.data(), d, d});
    for (int i = 0; i < d; ++i) {
      for (int j = 0; j < d; ++j) {
        EXPECT_NEAR(rows[static_cast<std::size_t>(i) * d + j], i == j ? 1 : 0, 1e-5) << i << " " << j;
      }
    }
  }
}

TEST(Pca, RefusesABasisThatIsNotOrthonormal) {
  auto basis = random_basis(64, 9);
  basis[70] += 0.1F;
  Constants constants;
  constants.set(2, 0, Side::value, "pca", basis);
  constants.set(2, 0, Side::key, "pca", std::vector<float>(64, 1.0F));
  const auto skewed = Transform::make(Names{"pca"}, 64, HeadConstants{&constants, 2, 0, Side::value});
  ASSERT_FALSE(skewed.ok());
  EXPECT_NE(skewed.error().message.find("layer 2 KV head 0 V are not orthonormal"), std::string::npos);
  EXPECT_FALSE(Transform::make(Names{"pca"}, 64, HeadConstants{&constants, 2, 0, Side::key}).ok());
}

TEST(Nova, RefusesAMatrixWithoutInverse) {
  Constants constants;
  std::vector<float> matrix = random_basis(64, 9);
  std::copy_n(matrix.begin(), 64, matrix.begin() + 64);
  constants.set(2, 0, Side::key, "nova", matrix);
  constants.set(2, 0, Side::value, "nova", std::vector<float>(64 * 64, 0.0F));
  for (const Side side : kSides) {
    const auto made = Transform::make(Names{"nova"}, 64, HeadConstants{&constants, 2, 0, side});
    ASSERT_FALSE(made.ok());
    EXPECT_NE(made.error().message.find("have no inverse: calibrate again"), std::string::npos);
  }
}

TEST(TransformKinds, SayHowManyConstantsTheyTake) {
  for (const TransformKind* kind : transform_kinds()) {
    if (!kind->calibrated) continue;
    EXPECT_EQ(kind->constant_size(80), constants_of_step(kind->name, 80, 1).size()) << kind->name;
  }
}

TEST(RandomHadamard, SpreadsAUnitVectorEvenly) {
  // Without the signs, H would map a row of H to a single coordinate.
  const int d = 128;
  std::vector<float> x(d, 1.0F / std::sqrt(static_cast<float>(d)));
  make_transform({"rhadamard"}, d, {}, Side::key).forward({x.data(), 1, d});
  for (float value : x) EXPECT_LT(std::fabs(value), 0.5F);
}

}  // namespace
}  // namespace kvant
