// ShapedEncoder encodes trellis-coded rows (trellis.h) with errors shaped by an ErrorMetric, for pages of K
// in the format tcq. ShapedEncoder chooses seams like TrellisEncoder, then searches with the metric.
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

  // Computes symbols [n_rows, d] for values [n_rows, d] like TrellisEncoder::encode(), but minimizes the cost
  // in the metric. d must be the metric's d. A row's path begins and ends in the node that
  // TrellisEncoder::find_seams() gives.
  void encode(const float* values, int n_rows, const ErrorMetric& metric, std::uint16_t* symbols) const;

 private:
  const TrellisTable& table_;
  TrellisEncoder plain_;
  const ShapedKernel& kernel_;
};

}  // namespace kvant
