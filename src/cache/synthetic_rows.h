// SyntheticRows: benchmarks only: the protected rows of a sequence that is filled with noise, all out of the
// one page of its tail, in every head the same ones.
#pragma once

#include "cache/device_page_store.h"

namespace kvant {

class SyntheticRows {
 public:
  // All three outlive it.
  SyntheticRows(const Plan& plan, DevicePageStore& store, const DeviceProtection& protection);

  bool enough_memory() const { return n_rows_ == 0 || memory_ != nullptr; }
  // Writes those of a layer, whose tail of_layer names.
  Status fill(const kvant_decode_shape& shape, kvant_decode_layer of_layer, int layer) const;

 private:
  DevicePageStore& store_;
  PageDevice& device_;
  DeviceMemory memory_;  // [4][n_rows_] numbers, and the table of protected pages
  int n_rows_ = 0;
};

}  // namespace kvant
