// Encodes trellis-coded rows (trellis.h) with errors shaped by an ErrorMetric.
#pragma once

#include <cstdint>

#include "format/error_metric.h"
#include "format/shaped_search.h"
#include "format/trellis_encoder.h"

namespace kvant {

class ShapedEncoder {
 public:
  explicit ShapedEncoder(const TrellisTable& table, const ShapedKernel& kernel = best_shaped_search())
      : table_(table), plain_(table), kernel_(kernel) {}

  // Encodes like TrellisEncoder::encode, but minimizes the metric's error; n is the metric's d. A row's path
  // begins and ends in the same node as the path of least squared error.
  void encode(const float* values, int n_rows, const ErrorMetric& metric, std::uint16_t* symbols) const;

 private:
  const TrellisTable& table_;
  TrellisEncoder plain_;
  const ShapedKernel& kernel_;
};

}  // namespace kvant
