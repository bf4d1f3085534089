#include "calibrate/scored_predictions.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "eval/logit_metrics.h"

namespace kvant {

int n_scored_predictions(std::size_t n_tokens, int n_vocab) {
  constexpr std::int64_t kMaxLogitBytes = std::int64_t{256} << 20;
  const auto half = static_cast<std::int64_t>(n_tokens / 2);
  return static_cast<int>(std::clamp<std::int64_t>(kMaxLogitBytes / (n_vocab * std::int64_t{sizeof(float)}),
                                                   1, std::max<std::int64_t>(1, half)));
}

Result<double> mean_divergence(std::span<const float> expected, std::span<const float> got, int n_vocab,
                               int n_threads) {
  KVANT_CHECK(expected.size() == got.size(), "predictions of different tokens");
  const int n = static_cast<int>(expected.size() / n_vocab);
  const std::vector<std::int32_t> targets(n, 0);  // the divergence does not depend on the next tokens
  LogitMetrics metrics;
  metrics.begin_chunk();
  KVANT_RETURN_IF_ERROR(
      metrics.add({expected.data(), n, n_vocab}, {got.data(), n, n_vocab}, targets, n_threads));
  return metrics.summary().kld_mean;
}

}  // namespace kvant
