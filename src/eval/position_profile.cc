#include "eval/position_profile.h"

#include <algorithm>
#include <cmath>

namespace kvant {

std::vector<TailPoint> divergence_tail(const PositionScores& positions) {
  constexpr int kPointsPerDecade = 5;
  std::vector<double> sorted = positions.kld;
  std::sort(sorted.begin(), sorted.end());
  std::vector<TailPoint> tail;
  const double least = 1.0 / static_cast<double>(std::max<std::size_t>(sorted.size(), 1));
  for (int i = 0; !sorted.empty(); ++i) {
    const double share = std::max(std::pow(10.0, -static_cast<double>(i) / kPointsPerDecade), least);
    tail.push_back({share, quantile(sorted, 1 - share)});
    if (share == least) break;
  }
  return tail;
}

std::vector<DriftBin> divergence_drift(const PositionScores& positions, int n_chunks, int n_bins) {
  KVANT_CHECK(n_chunks > 0 && positions.kld.size() % n_chunks == 0, "chunks of different lengths");
  const int length = static_cast<int>(positions.kld.size()) / n_chunks;
  std::vector<DriftBin> bins;
  for (int i = 0; i < n_bins; ++i) {
    DriftBin bin{length * i / n_bins, length * (i + 1) / n_bins - length * i / n_bins};
    if (bin.count == 0) continue;
    for (int chunk = 0; chunk < n_chunks; ++chunk) {
      for (int j = chunk * length + bin.first; j < chunk * length + bin.first + bin.count; ++j) {
        bin.kld += positions.kld[j];
        bin.top1 += positions.same_top[j];
      }
    }
    bin.kld /= static_cast<double>(bin.count) * n_chunks;
    bin.top1 /= static_cast<double>(bin.count) * n_chunks;
    bins.push_back(bin);
  }
  return bins;
}

}  // namespace kvant
