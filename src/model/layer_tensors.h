// LayerTensors adds the steps of a layer (layer_program.h) to a ggml graph. Each step becomes operations that
// make new tensors. The graph of a device's forward pass and the graph of its gradients share this code. The
// two graphs differ in their attention. The graph of gradients also notes the operations that it must
// differentiate later.
#pragma once

#include <ggml.h>

#include "model/hparams.h"
#include "model/weights.h"

namespace kvant {

// Rotates heads x by the RoPE of a layer. `operation` is ggml's RoPE or its transposed derivative. short_rope
// selects LongRoPE's factors for short sequences.
ggml_tensor* turn_heads(ggml_context* context, decltype(&ggml_rope_ext) operation, const Hparams& hparams,
                        const Weights& weights, int layer, ggml_tensor* positions, bool short_rope,
                        ggml_tensor* x);

class LayerTensors {
 public:
  virtual ~LayerTensors() = default;

  void run(const Norm& step);
  void run(const ProjectHeads& step);
  void run(const NormHeads& step);
  void run(const TurnHeads& step);
  void run(const NormValues& step);
  void run(const ProjectBack& step);
  void run(const Add& step);
  void run(const RunNetwork& step);
  void run(const RouteRows& step);
  void run(const RunExperts& step);
  void run(const ScaleByWidth& step);
  void run(const ScaleLayer& step);

 protected:
  // Inputs holds the inputs of the layers. `numbers` holds 0, 1, 2, ..., one number per row of the longest
  // weight. With these row numbers, the graph expands weights to F32. If `numbers` is null, products use the
  // weights as they are stored.
  struct Inputs {
    ggml_tensor *positions, *numbers;
    bool short_rope = false;  // RoPE uses LongRoPE's factors for short sequences
  };
  LayerTensors(ggml_context* context, const Hparams& hparams, const Weights& weights)
      : c_(context), h_(hparams), w_(weights) {}

  // The graph of a gradient overrides the operations from norm() to network(), in order to record them for
  // the backward pass.

  // Norms the rows of x. `weight` and `bias` may be null.
  virtual ggml_tensor* norm(ggml_tensor* x, ggml_tensor* weight, ggml_tensor* bias = nullptr);
  virtual ggml_tensor* multiply(ggml_tensor* weight, ggml_tensor* bias, ggml_tensor* x);
  virtual ggml_tensor* rope(ggml_tensor* x);
  // Returns activation(gate) * up, or activation(up) without a gate. If `gate` is null, `up` may hold both.
  virtual ggml_tensor* activated(ggml_tensor* gate, ggml_tensor* up);
  virtual ggml_tensor* sum(ggml_tensor* a, ggml_tensor* b);
  virtual ggml_tensor* scaled(ggml_tensor* x, float by);
  // Makes q, k and v [d, n_heads, n_rows] from h.
  virtual void project_heads(ggml_tensor* h);
  virtual ggml_tensor* network(const NetworkWeights& w, ggml_tensor* h);

  // as_rows() turns heads [d, n_heads, n_rows] into rows [d * n_heads, n_rows], and as_heads() does the
  // opposite.
  virtual ggml_tensor* as_rows(ggml_tensor* x);
  virtual ggml_tensor* as_heads(ggml_tensor* x, int n_heads);

  // The functions from weights() to separate_from_gates() are parts of the operations.

  const LayerWeights& weights() const { return w_.layer(layer_); }
  ggml_tensor*& rows(RowSet which);
  // Rotates x by the RoPE of the current layer.
  ggml_tensor* turned(decltype(&ggml_rope_ext) operation, ggml_tensor* x) {
    return turn_heads(c_, operation, h_, w_, layer_, inputs_.positions, inputs_.short_rope, x);
  }
  // Returns a weight of two or three dimensions, expanded to F32 if inputs_ has `numbers`.
  ggml_tensor* expanded(ggml_tensor* weight);
  // Returns a view of n_heads heads of the layer, from head `first` on, [d, n_heads, n_rows].
  ggml_tensor* heads(ggml_tensor* y, int n_heads, int first = 0);
  // Returns a view of q's heads in a projection where each head is followed by its gates.
  virtual ggml_tensor* separate_from_gates(ggml_tensor* both);

  ggml_context* c_;
  const Hparams& h_;
  const Weights& w_;
  Inputs inputs_{};
  int layer_ = 0;
  ggml_tensor *x_ = nullptr, *normed_ = nullptr, *y_ = nullptr, *dense_ = nullptr;  // the rows of each
                                                                                    // RowSet
  ggml_tensor *q_ = nullptr, *k_ = nullptr, *v_ = nullptr;  // k and v are null if the layer attends to
                                                            // another layer's cache
  ggml_tensor* attended_ = nullptr;                         // [n_q, n_rows] after attention, or a delta net's
                                                            // outputs
  ggml_tensor* routed_ = nullptr;                           // [n_experts, n_rows], the router's logits

 private:
  ggml_tensor* normed_heads(ggml_tensor* x, ggml_tensor* weight, bool of_rows);
  ggml_tensor* of_best_groups(ggml_tensor* scores);
};

}  // namespace kvant
