// PlanTransforms: the transforms of a plan's recipe as matrices in a device's memory, for its graphs.
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

// x -> x A + b for rows of a layer's heads; null: the identity. All heads may share a matrix.
struct DeviceTransform {
  ggml_tensor* matrix = nullptr;  // [d, d] or [d, d, n_kv_heads]: A transposed, as ggml multiplies
  ggml_tensor* offset = nullptr;  // [d, n_kv_heads], or null: none
};

struct LayerTransforms {
  DeviceTransform k, v;  // into the cache
  DeviceTransform q;     // to match
  DeviceTransform out;   // of attention, back
  // Those of a Hadamard matrix, maybe of channels that are scaled first, are left to the library: k and q, or
  // v and out, are the identity then.
  LibraryTransform library_k, library_v;
};

class PlanTransforms {
 public:
  // Of a plan with its pages in host memory: none. An error where memory is exhausted.
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
