// DeviceGraph is the compute graph of a decoder-only transformer for one batch shape on a device. It is cut
// at its attention sites: segment i ends with the queries, keys and values of the ith layer with attention,
// the last one with the logits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/matrix_view.h"
#include "base/result.h"
#include "model/device_delta_net.h"
#include "model/executor.h"
#include "model/hparams.h"
#include "model/plan_transforms.h"
#include "model/weights.h"

struct ggml_backend;
struct ggml_backend_buffer;
struct ggml_cgraph;
struct ggml_context;
struct ggml_gallocr;
struct ggml_tensor;

namespace kvant {

// How a graph multiplies by weights that are not F32: as fast as the backend can, which may round activations
// to 8 bits, or with weights expanded to F32 first.
enum class DeviceProducts : std::uint8_t { fastest, f32 };

// The shape for which a graph is built.
struct GraphShape {
  int n_rows = 0, n_logit_rows = 0;
  std::vector<SliceRun> runs;  // only for models with delta nets; other graphs take rows alone
  bool short_rope = false;     // RoPE with the factors for short sequences
  bool operator==(const GraphShape&) const = default;
  int n_slices() const;
};

// Values that the host looks up for the rows of a step.
struct RowValues {
  std::vector<float> embedded;  // [n_rows, n_embd]
  std::vector<float>
      embedded_for_layers;          // [n_rows, n_layers n_layer_embd]: the layers' own embeddings; or none
  std::vector<float> query_scales;  // [n_rows]: factors of q; none: 1
};

class DeviceGraph {
 public:
  // Returns an error if the graph does not support a part of the model.
  static Status check(const Hparams& hparams, ggml_backend* backend);
  // Returns the bytes for the states of n_slices slices.
  static std::size_t state_memory(const Hparams& hparams, int n_slices);
  // Builds the graph; all arguments must outlive it. `states` has as many slices as the shape; null: it has
  // none. Errors: memory is short, or the backend cannot compute something.
  static Result<std::unique_ptr<DeviceGraph>> build(const Hparams& hparams, const Weights& weights,
                                                    DeviceProducts products, const PlanTransforms& transforms,
                                                    ggml_backend* backend, GraphShape shape,
                                                    ggml_backend_buffer* states);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  const GraphShape& shape() const { return shape_; }
  const Plan* plan() const { return transforms_.plan().get(); }
  std::int64_t bytes() const;

  void set_rows(const ForwardRows& rows, const RowValues& values);  // copies them to the device
  // Starts segment i, of a layer with attention. For i beyond these it starts what follows all of them, if
  // anything must be computed there.
  Status start(int segment);
  // Waits, and copies the logits.
  void read_logits(MatrixView<float> logits);

  // These functions wait, and copy the rows of the layer whose segment was started last, as F32 (see
  // LayerRows). Queries, keys and values must be read before attention overwrites the queries, attention's
  // rows after it. The plan's transforms have been applied. k and v are empty for a layer that attends to
  // another layer's cache.
  void read_queries(std::span<float> q) const;
  void read_inputs(std::span<float> q, std::span<float> k, std::span<float> v) const;
  void read_attended(std::span<float> out) const;
  // Sends the host's attention back. `out` must stay unchanged until the next of these calls.
  void write_attended(std::span<const float> out);

  // Device addresses of what a layer's attention reads and writes, the same for all layers.
  float* q() const;
  float* k() const;
  float* v() const;
  float* attended() const;
  // Returns the states of all slices for the first delta net, then for the next one: the convolutions'
  // inputs, and the matrices.
  float* conv_states() const;
  float* matrix_states() const;

 private:
  class Builder;
  struct Tensors {
    ggml_tensor *x, *positions, *logit_rows;  // inputs; layers also pass x [n_embd, n_rows] on
    ggml_tensor *q, *k, *v;                   // F32 [heads * d, n_rows], for the widest layer
    ggml_tensor* attended;                    // same shape as q
    ggml_tensor* gates;                       // gates of the queries' heads, same shape as attended
    ggml_tensor* logits;                      // [n_vocab, n_logit_rows]
    ggml_tensor* numbers;                     // 0, 1, 2, ..., one per row of a weight; null: not needed
    DeltaStates states;
    ggml_tensor* query_scales;  // [1, 1, n_rows], an input; null: 1
    // [n_layer_embd, n_layers, n_rows]: the layers' own embeddings, an input, and what the layers read. Null:
    // the model has none.
    ggml_tensor *layer_tokens, *layer_inputs;
  };

  DeviceGraph(const PlanTransforms& transforms, ggml_backend* backend, GraphShape shape);
  Status allocate();
  void send_numbers();
  // Reads to.size() values from the first on, when the stream has computed them.
  void read(const ggml_tensor* from, std::span<float> to) const;

  const PlanTransforms& transforms_;
  ggml_backend* backend_;
  GraphShape shape_;
  ggml_context* context_ = nullptr;
  ggml_context* fixed_context_ = nullptr;  // context of tensors_
  ggml_backend_buffer* fixed_ = nullptr;
  ggml_gallocr* allocator_ = nullptr;  // for tensors that live only within a segment
  Tensors tensors_{};
  std::vector<ggml_cgraph*> segments_;
  std::vector<std::int32_t> sent_logit_rows_;  // the tensor's contents; decode steps repeat the same
};

}  // namespace kvant
