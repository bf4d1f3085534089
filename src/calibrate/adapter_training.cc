#include "calibrate/adapter_training.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

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

using Contexts = std::vector<const AdapterContext*>;

double mean_loss(const Contexts& contexts, const AdapterWeights& weights, int features) {
  double sum = 0;
  for (const AdapterContext* context : contexts) sum += adapter_loss(*context, weights, features, nullptr);
  return sum / static_cast<double>(contexts.size());
}

double mean_uncorrected_loss(const Contexts& contexts) {
  double sum = 0;
  for (const AdapterContext* context : contexts)
    sum += uncorrected_loss(*context) / static_cast<double>(contexts.size());
  return sum;
}

// Judges parts the judged contexts: `often` evaluates the weights again and again, `at_end` once. `at_end` is
// empty if all contexts belong to `often`.
struct Judges {
  Contexts often, at_end;
};

Judges judges_of(std::span<const AdapterContext> judged) {
  const std::size_t n = judged.size(), n_often = std::min<std::size_t>(n, kMostJudged);
  Judges judges;
  for (std::size_t i = 0; i < n; ++i) {
    // The contexts of `often` are spread evenly, because neighbours have similar lengths.
    const bool is_often = (i + 1) * n_often / n > i * n_often / n;
    (is_often ? judges.often : judges.at_end).push_back(&judged[i]);
  }
  return judges;
}

void add_to(std::vector<float>& sum, const std::vector<float>& values) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
}

void divide(std::vector<float>& values, int divisor) {
  for (float& x : values) x /= static_cast<float>(divisor);
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
  const Judges judges = judges_of(judged);
  TrainedAdapters best;
  best.loss_before = mean_uncorrected_loss(judges.often);
  best.loss_after = best.loss_before;

  Adam key_step(weights.key.size(), options.learning_rate);
  Adam query_step(weights.query.size(), options.learning_rate);
  AdapterWeights gradient, of_group;
  std::vector<std::size_t> order;
  const auto differentiate = [&](AdapterWeights& to) {
    adapter_loss(training[next_context(training.size(), order, random)], weights, options.features, &to);
  };
  int judgements_without_gain = 0;
  for (int step = 1; step <= options.max_steps; ++step) {
    differentiate(gradient);
    for (int group = 1; group < options.groups; ++group) {
      differentiate(of_group);
      add_to(gradient.key, of_group.key);
      add_to(gradient.query, of_group.query);
    }
    if (options.groups > 1) {
      divide(gradient.key, options.groups);
      divide(gradient.query, options.groups);
    }
    key_step.step(gradient.key, weights.key);
    query_step.step(gradient.query, weights.query);
    if (step % kStepsBetweenJudgements != 0) continue;
    const double loss = mean_loss(judges.often, weights, options.features);
    if (loss < best.loss_after * (1 - kMinLossGain)) {
      best.helps = true;
      best.loss_after = loss;
      best.weights = weights;
      judgements_without_gain = 0;
    } else if (++judgements_without_gain == kPatience) {
      break;
    }
  }
  if (!judges.at_end.empty()) {
    best.loss_before = mean_uncorrected_loss(judges.at_end);
    const double after =
        best.helps ? mean_loss(judges.at_end, best.weights, options.features) : best.loss_before;
    best.helps = after < best.loss_before * (1 - kMinLossGain);
    best.loss_after = best.helps ? after : best.loss_before;
  }
  return best;
}

}  // namespace kvant
