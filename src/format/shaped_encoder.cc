#include "format/shaped_encoder.h"

#include <cstddef>
#include <vector>

namespace kvant {

void ShapedEncoder::encode(const float* values, int n_rows, const ErrorMetric& metric,
                           std::uint16_t* symbols) const {
  const int n = static_cast<int>(metric.steps().size());
  std::vector<std::uint8_t> seams(n_rows);
  plain_.find_seams(values, n_rows, n, seams.data());
  std::vector<std::uint8_t> states(static_cast<std::size_t>(n_rows) * n);
  std::vector<std::uint8_t> trace(static_cast<std::size_t>(n) * kShapedTrace);
  std::vector<ShapedRow> rows;
  for (int row = 0; row < n_rows; ++row) {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(row) * n;
    rows.push_back({values + first, seams[row], states.data() + first});
  }
  kernel_.search(bits_, levels_.data(), metric.steps().data(), n, rows.data(), n_rows, trace.data());
  for (std::size_t i = 0; i < states.size(); ++i)
    symbols[i] = static_cast<std::uint16_t>(states[i] >> (kTrellisBits - bits_));
}

}  // namespace kvant
