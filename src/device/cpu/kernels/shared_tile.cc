#include "device/cpu/kernels/shared_tile.h"

#include <algorithm>

namespace kvant::cpu {
namespace {

constexpr int kMinRunPages = 4;
constexpr int kMaxRuns = 16;

// A run must be long enough to outweigh the merge, and short enough to share out. The length of runs depends
// on the number of pages alone, because results must not depend on the number of threads. Algorithm 1 as
// printed (sas_paper) rescales from page to page, so its error would depend on the runs. sas_paper therefore
// gets a single run.
int run_pages(std::size_t n_pages, Softmax softmax) {
  const auto n = static_cast<int>(n_pages);
  if (softmax == Softmax::sas_paper) return std::max(1, n);
  return std::max(kMinRunPages, (n + kMaxRuns - 1) / kMaxRuns);
}

}  // namespace

void SharedTile::divide() {
  pages_per_run = run_pages(pages.size(), rules.softmax);
  runs.resize((pages.size() + pages_per_run - 1) / pages_per_run);
  for (PartialAttention& run : runs) run.reset(queries.rows(), rules.head_dim);
}

std::span<const PageView> SharedTile::pages_of(int run) const {
  const std::size_t first = std::size_t{1} * run * pages_per_run;
  return std::span(pages).subspan(first, std::min<std::size_t>(pages_per_run, pages.size() - first));
}

PartialAttention& SharedTile::merge() {
  if (runs.empty()) runs.emplace_back().reset(queries.rows(), rules.head_dim);
  PartialAttention& total = runs.front();
  for (std::size_t run = 1; run < runs.size(); ++run) total.merge(runs[run], rules.head_dim);
  return total;
}

PartialAttention& SharedTile::finish(const RowEnds& ends) {
  PartialAttention& total = merge();
  finish_rows(queries, rules.head_dim, ends, total, finished);
  return total;
}

}  // namespace kvant::cpu
