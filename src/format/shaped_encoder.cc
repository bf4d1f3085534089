#include "format/shaped_encoder.h"

#include <array>
#include <cstddef>
#include <vector>

#include "format/affine_row.h"

namespace kvant {

void ShapedEncoder::encode(const float* values, int n_rows, const ErrorMetric& metric,
                           std::uint16_t* symbols) const {
  const int n = static_cast<int>(metric.steps().size());
  std::vector<std::uint8_t> seams(n_rows);
  plain_.find_seams(values, n_rows, n, seams.data());
  std::vector<std::uint8_t> trace(static_cast<std::size_t>(n) * kTrellisStates);
  std::array<std::uint8_t, kMaxHeadDim> states;
  for (int row = 0; row < n_rows; ++row) {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(row) * n;
    kernel_.search(bits_, levels_.data(), metric.steps().data(), n,
                   {values + first, seams[row], states.data()}, trace.data());
    for (int i = 0; i < n; ++i)
      symbols[first + i] = static_cast<std::uint16_t>(states[i] >> (kTrellisBits - bits_));
  }
}

}  // namespace kvant
