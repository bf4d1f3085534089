// DeviceConstants: what pages of a plan need on a device beside their bytes, as the library reads it
// (kvant/kvant.h): codebooks.
#pragma once

#include <memory>
#include <vector>

#include "cache/page_device.h"
#include "recipe/plan.h"

namespace kvant {

class DeviceConstants {
 public:
  // Those of the heads of a plan, into the device's memory. An error: memory is exhausted, or a codebook
  // holds what half precision can't.
  static Result<std::shared_ptr<const DeviceConstants>> make(std::shared_ptr<PageDevice> device,
                                                             const Plan& plan);

  // Names the layer's to the library.
  void add_to(kvant_decode_layer& at_layer, int layer) const;

 private:
  // Of one layer and side, for each KV head: at offset + head * stride, in numbers of half precision.
  struct Codebooks {
    std::size_t offset = 0, stride = 0;  // stride 0: there are none
  };
  explicit DeviceConstants(std::shared_ptr<PageDevice> device);

  std::shared_ptr<PageDevice> device_;  // outlives the memory
  DeviceMemory codebook_memory_;        // null: no codebooks
  std::vector<Codebooks> codebooks_;    // [n_layers][2 sides]
};

}  // namespace kvant
