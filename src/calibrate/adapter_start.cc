#include "calibrate/adapter_start.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace kvant {
namespace {

constexpr double kMaxLossIncrease = 0.02;  // the start may raise the loss by at most this share
constexpr float kLean = 16;                // the logit of the mean query at the features on which queries
                                           // concentrate
constexpr float kLargestSpread = 64;

// Returns the number of features on which queries concentrate, in each half of D: a quarter of the half.
int quiet_features(int features) {
  return features / 8;
}

// Returns the mean query of head g, [d].
std::vector<double> mean_query(std::span<const AdapterContext> contexts, int g) {
  const int d = contexts.front().head_dim;
  std::vector<double> mean(d);
  double n = 0;
  for (const AdapterContext& context : contexts) {
    const float* q = context.queries.data() + static_cast<std::ptrdiff_t>(g) * context.m * d;
    for (int i = 0; i < context.m * d; ++i) mean[i % d] += q[i];
    n += context.m;
  }
  for (double& x : mean) x /= n;
  return mean;
}

// Returns the root mean square of the norms of the keys' errors.
float error_length(std::span<const AdapterContext> contexts) {
  double sum = 0;
  double n = 0;
  for (const AdapterContext& context : contexts) {
    for (const float x : context.errors) sum += static_cast<double>(x) * x;
    n += static_cast<double>(context.errors.size()) / context.head_dim;
  }
  return static_cast<float>(std::sqrt(sum / n));
}

// Fills a row-major matrix [d, features / 2]. weight(channel, feature) returns each value, and is called in
// row-major order.
template <class Weight>
void fill_matrix(float* matrix, int d, int features, const Weight& weight) {
  for (int i = 0; i < d; ++i) {
    for (int j = 0; j < features / 2; ++j) *matrix++ = weight(i, j);
  }
}

}  // namespace

Result<AdapterWeights> quiet_start(std::span<const AdapterContext> training, int n_query_heads, int features,
                                   std::uint64_t seed, AdapterLosses& losses) {
  constexpr std::size_t kFirst[] = {0};
  const int d = training.front().head_dim;
  const std::size_t half = static_cast<std::size_t>(d) * features / 2;
  const int quiet = quiet_features(features);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  AdapterWeights weights{std::vector<float>(2 * half), std::vector<float>(2 * half * n_query_heads)};
  for (int g = 0; g < n_query_heads; ++g) {
    const std::vector<double> mean = mean_query(training, g);
    double square = 1e-30;
    for (const double x : mean) square += x * x;
    for (int part = 0; part < 2; ++part) {
      fill_matrix(weights.query.data() + (2 * g + part) * half, d, features, [&](int i, int j) {
        const double lean = j < quiet ? kLean * mean[i] / square : 0;
        return static_cast<float>(lean) + normal(random) / std::sqrt(static_cast<float>(d));
      });
    }
  }
  std::vector<float> directions(2 * half);
  for (float& x : directions) x = normal(random);
  const float length = std::max(error_length(training), 1e-30F);
  const double harmless = (1 + kMaxLossIncrease) * uncorrected_loss(training.front());
  float spread = 1;
  while (spread <= kLargestSpread) {
    for (int part = 0; part < 2; ++part) {
      fill_matrix(weights.key.data() + part * half, d, features, [&](int i, int j) {
        return j < quiet ? 0.0F : directions[part * half + i * (features / 2) + j] * spread / length;
      });
    }
    const auto loss = losses.mean(kFirst, weights, nullptr);
    if (!loss.ok()) return loss.error();
    if (*loss <= harmless) break;
    spread *= std::sqrt(2.0F);
  }
  return weights;
}

}  // namespace kvant
