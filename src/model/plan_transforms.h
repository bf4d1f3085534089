// Holds the transforms of a plan's recipe as matrices in a device's memory, for the device's graphs. A graph
// then applies a transform as a matrix product, unless the device's library has a faster way.
#pragma once

#include <memory>
#include <vector>

#include "attention/device_attention.h"
#include "base/result.h"
#include "recipe/plan.h"

struct ggml_backend;
struct ggml_backend_buffer;
struct ggml_context;
struct ggml_tensor;

namespace kvant {

// DeviceTransform maps rows x of a layer's heads to x A + b. A null matrix means the identity. All heads may
// share one matrix.
struct DeviceTransform {
  ggml_tensor* matrix = nullptr;  // [d, d] or [d, d, n_kv_heads]: A transposed, as ggml multiplies
  ggml_tensor* offset = nullptr;  // [d, n_kv_heads]; null if there is no offset
};

struct LayerTransforms {
  DeviceTransform k, v;  // transforms of rows that go into the cache
  DeviceTransform q;     // applied to queries, to match k
  DeviceTransform out;   // applied to outputs of attention; the inverse of v
  // The device's library applies transforms by a Hadamard matrix, with or without scaled channels. In the
  // graph, k and q, or v and out, are then the identity.
  LibraryTransform library_k, library_v;
};

class PlanTransforms {
 public:
  // Makes the transforms of a plan. If the plan's pages lie in host memory, there are none. Returns an error
  // if memory is exhausted.
  static Result<std::unique_ptr<PlanTransforms>> make(const PlacedPlan& plan, ggml_backend* backend);
  ~PlanTransforms();

  const std::shared_ptr<const Plan>& plan() const { return plan_; }
  const LayerTransforms& layer(int i) const { return layers_[i]; }

 private:
  class Maker;
  PlanTransforms() = default;

  std::shared_ptr<const Plan> plan_;
  std::vector<LayerTransforms> layers_;
  ggml_context* context_ = nullptr;
  ggml_backend_buffer* buffer_ = nullptr;
};

}  // namespace kvant
