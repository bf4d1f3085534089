// LayerTensors: the steps of a layer (layer_program.h) as ggml operations, each of which makes a new tensor.
// A device's graph and a device's gradients share them. The two differ in their attention, and gradients note
// what they differentiate later.
#pragma once

#include <ggml.h>

#include "model/hparams.h"
#include "model/weights.h"

namespace kvant {

// Turns heads x by the RoPE of a layer: with ggml's operation for RoPE, or with the one for its transposed
// derivative. short_rope: with the factors for short sequences.
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
  // The inputs of layers. numbers: 0, 1, 2, ..., as many as a weight has rows, which expand weights to F32;
  // null: products take weights as they are stored.
  struct Inputs {
    ggml_tensor *positions, *numbers;
    bool short_rope = false;  // RoPE with the factors for short sequences
  };
  LayerTensors(ggml_context* context, const Hparams& hparams, const Weights& weights)
      : c_(context), h_(hparams), w_(weights) {}

  // --- operations that a gradient notes ---

  // weight: null, if there is none; bias likewise.
  virtual ggml_tensor* norm(ggml_tensor* x, ggml_tensor* weight, ggml_tensor* bias = nullptr);
  virtual ggml_tensor* multiply(ggml_tensor* weight, ggml_tensor* bias, ggml_tensor* x);
  virtual ggml_tensor* rope(ggml_tensor* x);
  // Returns activation(gate) * up, or activation(up). Where gate is null, up holds both.
  virtual ggml_tensor* activated(ggml_tensor* gate, ggml_tensor* up);
  virtual ggml_tensor* sum(ggml_tensor* a, ggml_tensor* b);
  virtual ggml_tensor* scaled(ggml_tensor* x, float by);
  // Makes q, k and v [d, n_heads, n_rows] of h.
  virtual void project_heads(ggml_tensor* h);
  virtual ggml_tensor* network(const NetworkWeights& w, ggml_tensor* h);

  // These turn heads [d, n_heads, n_rows] into rows [d * n_heads, n_rows], and back.
  virtual ggml_tensor* as_rows(ggml_tensor* x);
  virtual ggml_tensor* as_heads(ggml_tensor* x, int n_heads);

  // --- parts of them ---

  const LayerWeights& weights() const { return w_.layer(layer_); }
  ggml_tensor*& rows(RowSet which);
  // Turns x as the layer does: see turn_heads().
  ggml_tensor* turned(decltype(&ggml_rope_ext) operation, ggml_tensor* x) {
    return turn_heads(c_, operation, h_, w_, layer_, inputs_.positions, inputs_.short_rope, x);
  }
  // Returns a weight of two or three dimensions, expanded to F32 if the inputs ask for that.
  ggml_tensor* expanded(ggml_tensor* weight);
  // Views columns from head `first` on as heads of the layer: [d, n_heads, n_rows].
  ggml_tensor* heads(ggml_tensor* y, int n_heads, int first = 0);
  // Views q's heads, where each is followed by its gates.
  virtual ggml_tensor* separate_from_gates(ggml_tensor* both);

  ggml_context* c_;
  const Hparams& h_;
  const Weights& w_;
  Inputs inputs_{};
  int layer_ = 0;
  ggml_tensor *x_ = nullptr, *normed_ = nullptr, *y_ = nullptr, *beside_ = nullptr;  // RowSet
  ggml_tensor *q_ = nullptr, *k_ = nullptr, *v_ = nullptr;  // k and v: null, where another layer's are used
  ggml_tensor* attended_ = nullptr;                         // [n_q, n_rows], or what a delta net gives
  ggml_tensor* routed_ = nullptr;                           // [n_experts, n_rows]: the router's logits

 private:
  ggml_tensor* normed_heads(ggml_tensor* x, ggml_tensor* weight, bool of_rows);
  ggml_tensor* of_best_groups(ggml_tensor* scores);
};

}  // namespace kvant
