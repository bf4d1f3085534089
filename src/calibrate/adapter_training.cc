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
constexpr int kPatience = 3;  // with ends_early, training ends after this many judgements without a gain
// A smaller relative reduction of the loss does not count as an improvement. Only a few contexts evaluate the
// weights, and they evaluate them several times, so small reductions may be chance.
constexpr double kMinLossGain = 5e-3;

// Lists contexts by their numbers.
using ContextNumbers = std::vector<std::size_t>;

double mean_uncorrected_loss(std::span<const AdapterContext> contexts, const ContextNumbers& numbers) {
  double sum = 0;
  for (const std::size_t i : numbers)
    sum += uncorrected_loss(contexts[i]) / static_cast<double>(numbers.size());
  return sum;
}

// Judges names the contexts that judge. `often` evaluates the weights again and again, and `at_end` once.
// `at_end` is empty if all contexts belong to `often`.
struct Judges {
  ContextNumbers often, at_end;
};

Judges judges_of(std::span<const AdapterContext> judged) {
  const std::size_t n = judged.size();
  const std::size_t n_often = std::clamp<std::size_t>(kMostJudgedQueries / judged.front().m, 1, n);
  Judges judges;
  for (std::size_t i = 0; i < n; ++i) {
    // The contexts of `often` are spread evenly, because neighbours have similar lengths.
    const bool is_often = (i + 1) * n_often / n > i * n_often / n;
    (is_often ? judges.often : judges.at_end).push_back(i);
  }
  return judges;
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

Result<TrainedAdapters> train_adapters(std::span<const AdapterContext> training,
                                       std::span<const AdapterContext> judged, int n_query_heads,
                                       const AdapterOptions& options, const MakeAdapterLosses& make_losses) {
  KVANT_CHECK(!training.empty() && !judged.empty(), "training without contexts");
  auto of_training = make_losses(training, options.features);
  if (!of_training.ok()) return of_training.error();
  auto of_judged = make_losses(judged, options.features);
  if (!of_judged.ok()) return of_judged.error();
  AdapterLosses &training_losses = **of_training, &judged_losses = **of_judged;
  auto start = quiet_start(training, n_query_heads, options.features, options.seed, training_losses);
  if (!start.ok()) return start.error();
  AdapterWeights weights = std::move(start).value();
  std::mt19937_64 random(options.seed);
  const Judges judges = judges_of(judged);
  TrainedAdapters best;
  best.loss_before = mean_uncorrected_loss(judged, judges.often);
  best.loss_after = best.loss_before;

  Adam key_step(weights.key.size(), options.learning_rate);
  Adam query_step(weights.query.size(), options.learning_rate);
  AdapterWeights gradient;
  ContextNumbers order, of_step(options.groups);
  int judgements_without_gain = 0;
  for (int step = 1; step <= options.max_steps; ++step) {
    for (std::size_t& context : of_step) context = next_context(training.size(), order, random);
    const auto stepped = training_losses.mean(of_step, weights, &gradient);
    if (!stepped.ok()) return stepped.error();
    key_step.step(gradient.key, weights.key);
    query_step.step(gradient.query, weights.query);
    if (step % kStepsBetweenJudgements != 0) continue;
    const auto loss = judged_losses.mean(judges.often, weights, nullptr);
    if (!loss.ok()) return loss.error();
    if (*loss < best.loss_after * (1 - kMinLossGain)) {
      best.helps = true;
      best.loss_after = *loss;
      best.weights = weights;
      judgements_without_gain = 0;
    } else if (++judgements_without_gain == kPatience && options.ends_early) {
      break;
    }
  }
  if (judges.at_end.empty()) return best;
  best.loss_before = mean_uncorrected_loss(judged, judges.at_end);
  best.loss_after = best.loss_before;
  if (!best.helps) return best;
  const auto after = judged_losses.mean(judges.at_end, best.weights, nullptr);
  if (!after.ok()) return after.error();
  best.helps = *after < best.loss_before * (1 - kMinLossGain);
  if (best.helps) best.loss_after = *after;
  return best;
}

TrainedAdapters train_adapters(std::span<const AdapterContext> training,
                               std::span<const AdapterContext> judged, int n_query_heads,
                               const AdapterOptions& options) {
  return train_adapters(training, judged, n_query_heads, options, make_host_adapter_losses).value();
}

}  // namespace kvant
