// Implements kvant's contender in the attention benchmark: an attention backend over a cache with synthetic
// contents. No model is needed, because constants and tokens are synthetic.
#pragma once

#include <memory>
#include <span>

#include "attention/attention.h"
#include "bench/attention_contender.h"
#include "cache/host_sequence.h"
#include "recipe/plan.h"

namespace kvant {

// Resolves `recipe` for a model of this shape. The model has as many layers as fill working_set bytes at
// `context` tokens, but at least the layers that the recipe names. Constants that calibration would make are
// synthetic. Bits that calibration would allocate to layers and heads are spread evenly. `order` must be the
// page order that is fastest for the backend.
Result<std::shared_ptr<const Plan>> plan_without_model(const Recipe& recipe, const AttentionHeads& shape,
                                                       int context, std::int64_t working_set,
                                                       PageOrder order);

// Times the work of a decode step in each layer: transform, append, attend. The step is opened and closed
// once for all layers, outside the timed part.
class CacheAttention final : public AttentionContender {
 public:
  // Returns an error if memory is short.
  static Result<std::unique_ptr<CacheAttention>> make(std::shared_ptr<const Plan> plan,
                                                      std::unique_ptr<AttentionBackend> backend, int context,
                                                      int n_threads);

  Result<double> layer_seconds() override;
  double layer_bytes() const override;
  double bits() const override;
  int n_layers() const override { return cache_.plan().geometry.n_layers; }
  std::vector<std::string> kernels() const override;

  const HeadState& head(int layer, int kv_head) const { return head_of(cache_, sequence_, layer, kv_head); }
  // Returns the values whose first rows are q, k and v of the new token.
  const AttentionValues& values() const { return values_; }
  // Returns the output of the last layer, [n_heads * head_dim].
  std::span<const float> output() const { return output_; }

 private:
  CacheAttention(std::shared_ptr<const Plan> plan, std::unique_ptr<AttentionBackend> backend, int n_threads);

  Cache cache_;
  SequenceId sequence_;
  std::unique_ptr<AttentionBackend> backend_;
  int n_threads_;
  AttentionValues values_;
  std::vector<float> output_;
};

}  // namespace kvant
