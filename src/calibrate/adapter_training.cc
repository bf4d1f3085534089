#include "calibrate/adapter_training.h"

#include <cmath>
#include <limits>
#include <random>

#include "base/check.h"
#include "calibrate/adam.h"

namespace kvant {
namespace {

constexpr int kStepsBetweenJudgements = 20;
constexpr int kPatience = 3;         // judgements without improvement before training ends
constexpr double kLeastGain = 2e-3;  // of the loss, to count as an improvement

// Normal numbers of the size that keeps x W at the scale of x.
std::vector<float> random_weights(std::size_t n, int head_dim, std::mt19937_64& random) {
  std::normal_distribution<float> normal(0.0F, 1.0F / std::sqrt(static_cast<float>(head_dim)));
  std::vector<float> weights(n);
  for (float& w : weights) w = normal(random);
  return weights;
}

double mean_loss(std::span<const AdapterContext> contexts, const AdapterWeights& weights, int features) {
  double sum = 0;
  for (const AdapterContext& context : contexts) sum += adapter_loss(context, weights, features, nullptr);
  return sum / static_cast<double>(contexts.size());
}

}  // namespace

TrainedAdapters train_adapters(std::span<const AdapterContext> training,
                               std::span<const AdapterContext> judged, int n_query_heads,
                               const AdapterOptions& options) {
  KVANT_CHECK(!training.empty() && !judged.empty(), "training without contexts");
  const int d = training.front().head_dim;
  const std::size_t map_size = static_cast<std::size_t>(d) * options.features;
  std::mt19937_64 random(options.seed);
  AdapterWeights weights{random_weights(map_size, d, random),
                         random_weights(map_size * n_query_heads, d, random)};
  TrainedAdapters best{weights, 0, mean_loss(judged, weights, options.features)};
  for (const AdapterContext& context : judged)
    best.loss_before += uncorrected_loss(context) / static_cast<double>(judged.size());

  Adam key_step(weights.key.size(), options.learning_rate);
  Adam query_step(weights.query.size(), options.learning_rate);
  AdapterWeights gradient;
  int judgements_without_gain = 0;
  for (int step = 1; step <= options.most_steps; ++step) {
    adapter_loss(training[step % training.size()], weights, options.features, &gradient);
    key_step.step(gradient.key, weights.key);
    query_step.step(gradient.query, weights.query);
    if (step % kStepsBetweenJudgements != 0) continue;
    const double loss = mean_loss(judged, weights, options.features);
    const bool gains = loss < best.loss_after * (1 - kLeastGain);
    judgements_without_gain = gains ? 0 : judgements_without_gain + 1;
    if (loss < best.loss_after) {
      best.loss_after = loss;
      best.weights = weights;
    }
    if (judgements_without_gain == kPatience) break;
  }
  return best;
}

}  // namespace kvant
