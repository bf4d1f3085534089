// DeviceConstants: what pages of a plan need on a device beside their bytes, as the library reads it
// (kvant/kvant.h): codebooks, the metrics by which errors of K are shaped, and the feature maps of a
// correction.
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

  // Names the layer's codebooks and sink logits to the library.
  void add_to(kvant_decode_layer& at_layer, int layer) const;
  // The metrics by which errors of a layer's K are shaped; null: there are none.
  const kvant_page_metrics* page_metrics(int layer) const {
    return metrics_[layer].directions == nullptr ? nullptr : &metrics_[layer];
  }
  // A corrected layer's maps: [2][head_dim][128] of each query head, and of each KV head; zeros where a head
  // isn't corrected. Null: the layer has none.
  const float* query_maps(int layer) const { return at(maps_[layer].queries); }
  const float* key_maps(int layer) const { return at(maps_[layer].keys); }

 private:
  // Of one layer and side, for each KV head: at offset + head * stride, in numbers of half precision.
  struct Codebooks {
    std::size_t offset = 0, stride = 0;  // stride 0: there are none
  };
  // Where a corrected layer's maps begin, in numbers; or nowhere.
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
  // The numbers, in memory of their own; null where there are none.
  Result<DeviceMemory> bring(const void* numbers, std::size_t bytes, const Plan& plan);
  explicit DeviceConstants(std::shared_ptr<PageDevice> device);

  std::shared_ptr<PageDevice> device_;  // outlives the memory
  DeviceMemory codebook_memory_, metric_memory_, map_memory_;
  DeviceMemory sink_logits_;  // F32 [n_layers][n_heads], or null
  int n_heads_ = 0;
  std::vector<Codebooks> codebooks_;         // [n_layers][2 sides]
  std::vector<kvant_page_metrics> metrics_;  // [n_layers]
  std::vector<Maps> maps_;                   // [n_layers]
};

}  // namespace kvant
