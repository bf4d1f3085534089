#include "bench/advice.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/progress.h"

namespace kvant {
namespace {

// A divergence of up to this many nats hardly counts. kvant-3bit diverges by less in the table of
// docs/quality.md.
constexpr double kHardlyCounts = 0.005;
constexpr double kNearlyAsFast = 0.9;

bool is_candidate(const AdviceRow& row) {
  return row.fits && row.measured;
}

double least_divergence(const std::vector<AdviceRow>& rows) {
  double least = 1e300;
  for (const AdviceRow& row : rows)
    if (is_candidate(row)) least = std::min(least, row.kld);
  return least;
}

// Sorts candidates for the recommendation first, then other rows that fit, then rows that do not fit. Each
// group is sorted by divergence, then by size.
bool before(const AdviceRow& a, const AdviceRow& b) {
  if (a.fits != b.fits) return a.fits;
  if (a.measured != b.measured) return a.measured;
  if (a.measured && a.kld != b.kld) return a.kld < b.kld;
  return a.bytes < b.bytes;
}

// Returns a clause about the row's divergence, for use in reason().
std::string closeness(const AdviceRow& row) {
  if (row.kld == 0) return "it loses nothing";
  if (row.kld <= kHardlyCounts) return fmt::format("its divergence of {:.2g} nats is negligible", row.kld);
  return fmt::format("its divergence of {:.2g} nats is among the smallest of the recipes that fit", row.kld);
}

std::string reason(const AdviceRow& chosen) {
  return fmt::format(
      "{} fits in {}, {}, and it is the fastest recipe of this quality, or nearly so: {:.1f} tokens/s",
      chosen.recipe, readable_bytes(static_cast<double>(chosen.bytes)), closeness(chosen), chosen.decode_tps);
}

}  // namespace

Advice advise(std::vector<AdviceRow> rows) {
  std::stable_sort(rows.begin(), rows.end(), before);
  if (rows.empty() || !rows.front().fits) {
    return {std::move(rows), false, "nothing fits: use a smaller context, fewer sequences or more memory"};
  }
  if (!is_candidate(rows.front())) return {std::move(rows), false, "no recipe that fits could be measured"};
  const double max_kld = std::max(kHardlyCounts, 2 * least_divergence(rows));
  const auto good = [&](const AdviceRow& row) { return is_candidate(row) && row.kld <= max_kld; };
  double fastest = 0;
  for (const AdviceRow& row : rows)
    if (good(row)) fastest = std::max(fastest, row.decode_tps);
  const auto chosen = std::find_if(rows.begin(), rows.end(), [&](const AdviceRow& row) {
    return good(row) && row.decode_tps >= kNearlyAsFast * fastest;
  });
  std::rotate(rows.begin(), chosen, chosen + 1);
  std::string why = reason(rows.front());
  return {std::move(rows), true, std::move(why)};
}

}  // namespace kvant
