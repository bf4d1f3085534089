// DeviceConstants holds what pages of a plan need on a device besides their bytes, in the form that the
// library reads (kvant/kvant.h). The constants are codebooks, the metrics by which errors of K are shaped,
// and the feature maps of a correction. The sink logits of attention lie here, too.
#pragma once

#include <memory>
#include <vector>

#include "cache/page_device.h"
#include "recipe/plan.h"

namespace kvant {

class DeviceConstants {
 public:
  // Copies the constants of all heads of a plan to the device's memory. An error says that memory is
  // exhausted, or that a codebook holds a value beyond half precision.
  static Result<std::shared_ptr<const DeviceConstants>> make(std::shared_ptr<PageDevice> device,
                                                             const Plan& plan);

  // Fills in the layer's codebooks and sink logits for the library.
  void add_to(kvant_decode_layer& at_layer, int layer) const;
  // Returns the metrics by which errors of a layer's K are shaped, or null if there are none.
  const kvant_page_metrics* page_metrics(int layer) const {
    return metrics_[layer].directions == nullptr ? nullptr : &metrics_[layer];
  }
  // Return the maps of a corrected layer, [2][head_dim][128] for each query head, and for each KV head. Heads
  // that are not corrected have zeros. Null means that the layer has no maps.
  const float* query_maps(int layer) const { return at(maps_[layer].queries); }
  const float* key_maps(int layer) const { return at(maps_[layer].keys); }

 private:
  // Locates the codebooks of one layer and side. The codebook of a KV head begins at offset + head * stride,
  // in numbers of half precision.
  struct Codebooks {
    std::size_t offset = 0, stride = 0;  // A stride of 0 means that there are no codebooks.
  };
  // Says where the maps of a corrected layer begin, in numbers. kNowhere means that the layer has no maps.
  static constexpr std::size_t kNowhere = ~std::size_t{0};
  struct Maps {
    std::size_t queries = kNowhere, keys = kNowhere;
  };
  const float* at(std::size_t first) const {
    return first == kNowhere ? nullptr : reinterpret_cast<const float*>(map_memory_.get()) + first;
  }
  Status bring_codebooks(const Plan& plan);
  Status bring_metrics(const Plan& plan);
  Status bring_maps(const Plan& plan);
  Status bring_sink_logits(const Plan& plan);
  // Copies the numbers to device memory of their own. The memory is null if there are no numbers.
  Result<DeviceMemory> bring(const void* numbers, std::size_t bytes, const Plan& plan);
  explicit DeviceConstants(std::shared_ptr<PageDevice> device);

  std::shared_ptr<PageDevice> device_;  // The device outlives the memory.
  DeviceMemory codebook_memory_, metric_memory_, map_memory_;
  DeviceMemory sink_logits_;  // F32 [n_layers][n_heads], or null
  int n_heads_ = 0;
  std::vector<Codebooks> codebooks_;         // [n_layers][2 sides]
  std::vector<kvant_page_metrics> metrics_;  // [n_layers]
  std::vector<Maps> maps_;                   // [n_layers]
};

}  // namespace kvant
