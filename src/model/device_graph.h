// DeviceGraph is the compute graph of a decoder-only transformer on a device, for one batch shape. The graph
// is cut into segments at its attention sites. Segment i ends with the queries, keys and values of the ith
// layer with attention, and the last segment ends with the logits.
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

// DeviceProducts selects how a graph multiplies by weights that are not F32. `fastest` lets the backend
// choose a method, which may round activations to 8 bits. `f32` expands the weights to F32 first.
enum class DeviceProducts : std::uint8_t { fastest, f32 };

// GraphShape is the shape for which a graph is built.
struct GraphShape {
  int n_rows = 0, n_logit_rows = 0;
  std::vector<SliceRun> runs;  // only for models with delta nets; other graphs need only the number of rows
  bool short_rope = false;     // RoPE uses LongRoPE's factors for short sequences
  bool operator==(const GraphShape&) const = default;
  int n_slices() const;
};

// RowValues holds values that the host looks up for the rows of a step.
struct RowValues {
  std::vector<float> embedded;  // [n_rows, n_embd]
  // [n_rows, n_layers * n_layer_embd], the layers' own embeddings; empty if the model has none.
  std::vector<float> embedded_for_layers;
  std::vector<float> query_scales;  // [n_rows], factors of q; empty if all are 1
};

class DeviceGraph {
 public:
  // Returns an error if a device's graph does not support a part of the model.
  static Status check(const Hparams& hparams, ggml_backend* backend);
  // Returns the bytes of the states of n_slices slices.
  static std::size_t state_memory(const Hparams& hparams, int n_slices);
  // Builds the graph. All arguments must outlive the graph. `states` has room for as many slices as the shape
  // has; `states` is null without delta nets. Returns an error if memory is short, or if the backend cannot
  // compute an operation.
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

  // Copies `rows` and `values` to the device.
  void set_rows(const ForwardRows& rows, const RowValues& values);
  // Starts segment i, which belongs to the ith layer with attention. An i beyond these layers starts the
  // segment after all of them, if that segment has anything to compute.
  Status start(int segment);
  // Waits for the graph and copies the logits.
  void read_logits(MatrixView<float> logits);

  // read_queries(), read_inputs() and read_attended() wait and copy the rows of the layer whose segment was
  // started last, as F32 (LayerRows). Read queries, keys and values before attention, which overwrites the
  // queries, and read the attended rows afterwards. The plan's transforms have been applied. k and v are
  // empty for a layer that attends to another layer's cache.
  void read_queries(std::span<float> q) const;
  void read_inputs(std::span<float> q, std::span<float> k, std::span<float> v) const;
  void read_attended(std::span<float> out) const;
  // Copies the outputs of attention on the host to the device. `out` must stay unchanged until the next call.
  void write_attended(std::span<const float> out);

  // q(), k(), v() and attended() return the device addresses that attention reads and writes. All layers use
  // the same addresses.
  float* q() const;
  float* k() const;
  float* v() const;
  float* attended() const;
  // conv_states() and matrix_states() return the states of all slices, ordered by delta net: the inputs of
  // convolutions, and the matrices.
  float* conv_states() const;
  float* matrix_states() const;

 private:
  class Builder;
  struct Tensors {
    ggml_tensor *x, *positions, *logit_rows;  // inputs; x [n_embd, n_rows] also goes from one segment to the
                                              // next
    ggml_tensor *q, *k, *v;                   // F32 [heads * d, n_rows] for the widest layer
    ggml_tensor* attended;                    // [heads * d, n_rows], like q
    ggml_tensor* gates;                       // gates of the query heads, with the shape of `attended`
    ggml_tensor* logits;                      // [n_vocab, n_logit_rows]
    ggml_tensor* numbers;                     // 0, 1, 2, ..., one per row of a weight; null if not needed
    DeltaStates states;
    ggml_tensor* query_scales;  // [1, 1, n_rows], an input; null if all are 1
    // layer_tokens holds the layers' own embeddings and is an input. layer_inputs holds what the layers read.
    // Both are [n_layer_embd, n_layers, n_rows], and null if the model has no such embeddings.
    ggml_tensor *layer_tokens, *layer_inputs;
  };

  DeviceGraph(const PlanTransforms& transforms, ggml_backend* backend, GraphShape shape);
  Status allocate();
  void send_numbers();
  // Waits for the stream, and copies the first to.size() values of `from`.
  void read(const ggml_tensor* from, std::span<float> to) const;

  const PlanTransforms& transforms_;
  ggml_backend* backend_;
  GraphShape shape_;
  ggml_context* context_ = nullptr;
  ggml_context* fixed_context_ = nullptr;  // the tensors in tensors_ belong to this context
  ggml_backend_buffer* fixed_ = nullptr;
  ggml_gallocr* allocator_ = nullptr;  // this allocates tensors that live only within a segment
  Tensors tensors_{};
  std::vector<ggml_cgraph*> segments_;
  // Holds the present contents of tensors_.logit_rows. Decode steps repeat the contents, which then need not
  // be sent again.
  std::vector<std::int32_t> sent_logit_rows_;
};

}  // namespace kvant
