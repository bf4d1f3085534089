#include "format/shaped_encoder.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/simd_clones.h"
#include "format/shaped_filter.h"

namespace kvant {
namespace {

// Computes counts [n] = values * units, rounded to the nearest integer and clamped to +-kMostValue. The added
// offset makes every number positive, so truncation rounds down.
KVANT_SIMD_CLONES void count_in_units(const float* values, std::size_t n, float units, std::int16_t* counts) {
  for (std::size_t i = 0; i < n; ++i) {
    const float count =
        std::clamp(values[i] * units, static_cast<float>(-kMostValue), static_cast<float>(kMostValue));
    counts[i] = static_cast<std::int16_t>(static_cast<int>(count + (kMostValue + 0.5F)) - kMostValue);
  }
}

}  // namespace

void ShapedEncoder::encode(const float* values, int n_rows, const ErrorMetric& metric,
                           std::uint16_t* symbols) const {
  const ShapedFilter filter(metric, table_);
  const int n = static_cast<int>(filter.steps.size());
  std::vector<std::uint8_t> seams(n_rows);
  plain_.find_seams(values, n_rows, n, seams.data());
  std::vector<std::int16_t> counts(static_cast<std::size_t>(n_rows) * n);
  count_in_units(values, counts.size(), filter.units, counts.data());
  std::vector<std::uint8_t> states(counts.size());
  std::vector<std::uint8_t> trace(static_cast<std::size_t>(n) * kShapedTrace);
  std::vector<ShapedRow> rows;
  for (int row = 0; row < n_rows; ++row) {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(row) * n;
    rows.push_back({counts.data() + first, seams[row], states.data() + first});
  }
  const ShapedCode code = {&table_, table_.levels.data(), filter.level_shift, filter.steps.data(), n};
  kernel_.search(code, rows.data(), n_rows, trace.data());
  for (std::size_t i = 0; i < states.size(); ++i)
    symbols[i] = static_cast<std::uint16_t>(states[i] >> (kTrellisBits - table_.bits));
}

}  // namespace kvant
