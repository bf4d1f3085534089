#include "calibrate/adapter_training.h"

#include <random>
#include <utility>

#include "base/check.h"
#include "calibrate/adam.h"
#include "calibrate/adapter_start.h"

namespace kvant {
namespace {

constexpr int kStepsBetweenJudgements = 40;
constexpr int kPatience = 3;  // training ends after this many evaluations without improvement
// A smaller relative reduction of the loss does not count as an improvement. Only a few contexts evaluate the
// weights, and they evaluate them several times, so small reductions may be chance.
constexpr double kMinLossGain = 5e-3;

double mean_loss(std::span<const AdapterContext> contexts, const AdapterWeights& weights, int features) {
  double sum = 0;
  for (const AdapterContext& context : contexts) sum += adapter_loss(context, weights, features, nullptr);
  return sum / static_cast<double>(contexts.size());
}

// Returns the next of n indices in a random order. `order` holds the indices that are left, and is filled and
// shuffled again when it is empty.
std::size_t next_context(std::size_t n, std::vector<std::size_t>& order, std::mt19937_64& random) {
  if (order.empty()) {
    for (std::size_t i = 0; i < n; ++i) order.push_back(i);
    for (std::size_t i = n - 1; i > 0; --i) std::swap(order[i], order[random() % (i + 1)]);
  }
  const std::size_t next = order.back();
  order.pop_back();
  return next;
}

}  // namespace

TrainedAdapters train_adapters(std::span<const AdapterContext> training,
                               std::span<const AdapterContext> judged, int n_query_heads,
                               const AdapterOptions& options) {
  KVANT_CHECK(!training.empty() && !judged.empty(), "training without contexts");
  std::mt19937_64 random(options.seed);
  AdapterWeights weights = quiet_start(training, n_query_heads, options.features, options.seed);
  TrainedAdapters best;
  for (const AdapterContext& context : judged)
    best.loss_before += uncorrected_loss(context) / static_cast<double>(judged.size());
  best.loss_after = best.loss_before;

  Adam key_step(weights.key.size(), options.learning_rate);
  Adam query_step(weights.query.size(), options.learning_rate);
  AdapterWeights gradient;
  std::vector<std::size_t> order;
  int judgements_without_gain = 0;
  for (int step = 1; step <= options.max_steps; ++step) {
    adapter_loss(training[next_context(training.size(), order, random)], weights, options.features,
                 &gradient);
    key_step.step(gradient.key, weights.key);
    query_step.step(gradient.query, weights.query);
    if (step % kStepsBetweenJudgements != 0) continue;
    const double loss = mean_loss(judged, weights, options.features);
    if (loss < best.loss_after * (1 - kMinLossGain)) {
      best.helps = true;
      best.loss_after = loss;
      best.weights = weights;
      judgements_without_gain = 0;
    } else if (++judgements_without_gain == kPatience) {
      break;
    }
  }
  return best;
}

}  // namespace kvant
