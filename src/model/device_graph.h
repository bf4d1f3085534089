// DeviceGraph: the compute graph of a decoder-only transformer for one batch shape on a device, cut at its
// attention sites: segment i ends with the queries, keys and values of the ith layer with attention, the last
// one with the logits.
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

// How a graph multiplies by weights that aren't F32: as fast as the backend can, which may round activations
// to the 8 bits of a format, or with each weight expanded to F32 first.
enum class DeviceProducts : std::uint8_t { fastest, f32 };

// What a graph is made for.
struct GraphShape {
  int n_rows = 0, n_logit_rows = 0;
  std::vector<SliceRun> runs;  // of a model with delta nets; else none: its graphs take rows alone
  bool short_rope = false;     // RoPE with the factors for short sequences
  bool operator==(const GraphShape&) const = default;
  int n_slices() const;
};

// What the host finds for the rows of a step.
struct RowValues {
  std::vector<float> embedded;             // [n_rows, n_embd]
  std::vector<float> embedded_for_layers;  // [n_rows, n_layers n_layer_embd]: of layers' own; or none
  std::vector<float> query_scales;         // [n_rows]: what q is multiplied by; none: 1
};

class DeviceGraph {
 public:
  // An error: the graph has no place for something of the model.
  static Status check(const Hparams& hparams, ggml_backend* backend);
  // Bytes for the states of so many slices.
  static std::size_t state_memory(const Hparams& hparams, int n_slices);
  // An error: memory is short, or the backend can't compute something. All outlive the graph. states: of as
  // many slices as the shape has; null: it has none.
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

  void set_rows(const ForwardRows& rows, const RowValues& values);  // sends them
  // Starts segment i: of a layer with attention, or, for i beyond these, what lies behind them all, if
  // anything has to be computed there.
  Status start(int segment);
  // Waits, and copies the logits.
  void read_logits(MatrixView<float> logits);

  // Wait, and copy the rows of the layer whose segment was started last: those that it made for attention,
  // before attention overwrites the queries, and attention's, after it. F32, as LayerRows has them. What the
  // plan transforms is transformed. k and v: none, of a layer that attends to another one's cache.
  void read_queries(std::span<float> q) const;
  void read_inputs(std::span<float> q, std::span<float> k, std::span<float> v) const;
  void read_attended(std::span<float> out) const;
  // Sends what the host's attention has made of them; `out` stays as it is until the next of these calls.
  void write_attended(std::span<const float> out);

  // What a layer's attention reads and writes: addresses on the device, the same for all layers.
  float* q() const;
  float* k() const;
  float* v() const;
  float* attended() const;
  // The first delta net's states of all slices, one after another, then the next one's: the convolutions'
  // inputs, and the matrices.
  float* conv_states() const;
  float* matrix_states() const;

 private:
  class Builder;
  struct Tensors {
    ggml_tensor *x, *positions, *logit_rows;  // inputs; x [n_embd, n_rows] is also what layers hand on
    ggml_tensor *q, *k, *v;                   // F32 [heads * d, n_rows], of the widest layer
    ggml_tensor* attended;                    // as q
    ggml_tensor* gates;                       // of the queries' heads: as attended
    ggml_tensor* logits;                      // [n_vocab, n_logit_rows]
    ggml_tensor* numbers;                     // 0, 1, 2, ...: as many as a weight has rows; null: not needed
    DeltaStates states;
    ggml_tensor* query_scales;  // [1, 1, n_rows], an input; null: 1
    // [n_layer_embd, n_layers, n_rows]: embeddings of the layers' own, an input, and what layers read; null:
    // they have none.
    ggml_tensor *layer_tokens, *layer_inputs;
  };

  DeviceGraph(const PlanTransforms& transforms, ggml_backend* backend, GraphShape shape);
  Status allocate();
  void send_numbers();
  // to.size() values from the first on, once the stream is there.
  void read(const ggml_tensor* from, std::span<float> to) const;

  const PlanTransforms& transforms_;
  ggml_backend* backend_;
  GraphShape shape_;
  ggml_context* context_ = nullptr;
  ggml_context* fixed_context_ = nullptr;  // of tensors_
  ggml_backend_buffer* fixed_ = nullptr;
  ggml_gallocr* allocator_ = nullptr;  // of all that lives within a segment
  Tensors tensors_{};
  std::vector<ggml_cgraph*> segments_;
  std::vector<std::int32_t> sent_logit_rows_;  // what the tensor holds: steps of answers have the same
};

}  // namespace kvant
