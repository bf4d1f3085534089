#include "calibrate/gradient_check.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/page_size.h"
#include "base/softmax.h"
#include "calibrate/model_gradient.h"
#include "recipe/plan.h"

namespace kvant {
namespace {

// Returns the engine's log probability of the token that follows each token. The last token counts as
// followed by the first. `offset` is added to the positions.
Result<std::vector<double>> log_probabilities(Engine& engine, AttentionBackend& backend,
                                              std::span<const std::int32_t> tokens, int offset) {
  const auto resolved = resolve(Recipe{}, engine.geometry(), nullptr);
  if (!resolved.ok()) return resolved.error();
  const auto plan = backend.place(*resolved);
  if (!plan.ok()) return plan.error();
  Cache cache(*plan, /*byte_limit=*/0);
  const int n = static_cast<int>(tokens.size()), n_vocab = engine.n_vocab();
  std::vector<float> logits(static_cast<std::size_t>(n) * n_vocab);
  const EngineInput input{cache.add(), tokens, true, 0, offset};
  KVANT_RETURN_IF_ERROR(engine.step(cache, backend, {&input, 1}, {logits.data(), n, n_vocab}));
  std::vector<double> all;
  for (int t = 0; t < n; ++t) {
    float* row = logits.data() + static_cast<std::ptrdiff_t>(t) * n_vocab;
    const double logit = row[tokens[(t + 1) % n]];
    const float max = max_row(row, n_vocab);
    all.push_back(logit - max - std::log(static_cast<double>(exp_row(row, n_vocab, max))));
  }
  return all;
}

double mean_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t t = 0; t < a.size(); ++t) sum += std::abs(a[t] - b[t]);
  return sum / static_cast<double>(a.size());
}

}  // namespace

Result<bool> gradients_fit(Engine& engine, AttentionBackend& backend, DifferentiableModel& model,
                           std::span<const std::int32_t> tokens, int n_threads) {
  constexpr double kTolerance = 0.1;  // nats; rounded activations cause differences of 0.02
  constexpr double kMostRounding = 0.4;
  const auto expected = log_probabilities(engine, backend, tokens, /*offset=*/0);
  if (!expected.ok()) return expected.error();
  const GradientRequest request{tokens, 0, 0, n_threads, [](int) {}, nullptr};
  const auto got = model_gradient(model, request, nullptr);
  if (!got.ok()) return got.error();
  const double difference = mean_difference(*got, *expected);
  if (difference < kTolerance) return true;
  const auto shifted = log_probabilities(engine, backend, tokens, /*offset=*/kPageTokens);
  if (!shifted.ok()) return shifted.error();
  return difference < kTolerance + std::min(mean_difference(*shifted, *expected), kMostRounding);
}

}  // namespace kvant
