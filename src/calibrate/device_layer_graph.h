// The graphs of a transformer's layer on a whole context, and of its derivative, in F32.
#pragma once

#include "model/hparams.h"
#include "model/weights.h"

struct ggml_cgraph;
struct ggml_context;
struct ggml_tensor;

namespace kvant {

// In memory of their own: [columns, rows] as ggml counts.
struct LayerInputs {
  ggml_tensor* x;             // [n_embd, n_rows]: the residual stream before the layer
  ggml_tensor* gradient;      // [n_embd, n_rows]: by what the layer gives
  ggml_tensor* positions;     // I32 [n_rows]
  ggml_tensor* numbers;       // I32 [most rows of a weight]: 0, 1, 2, ...
  ggml_tensor* mask;          // [n_rows of keys, n_rows of queries]: 0, or -inf of keys that aren't seen
  ggml_tensor* sliding_mask;  // the same in layers with a window
  ggml_tensor* sealed;        // as the mask: 1 of keys on pages before the query's own, else 0
  ggml_tensor* behind_sink;   // [n_rows]: 0 of the sink's tokens, else 1
};

// What a graph leaves behind, where it computes it.
struct LayerOutputs {
  ggml_tensor* x;                  // [n_embd, n_rows]: behind the layer
  ggml_tensor* gradient;           // [n_embd, n_rows]: by the x before it
  ggml_tensor* k;                  // [head_dim, n_rows, n_kv_heads]: after RoPE
  ggml_tensor* v;                  // likewise
  ggml_tensor* q;                  // [head_dim, n_rows, n_heads]: after RoPE
  ggml_tensor* attended_gradient;  // likewise: by what the heads give
  ggml_tensor* moments;            // [head_dim, head_dim, n_kv_heads]: LayerGradient::query_moments
};

// Weights of any type are expanded to F32 on the way. `outputs` gets x.
ggml_cgraph* layer_graph(ggml_context* context, const Hparams& hparams, const Weights& weights, int layer,
                         const LayerInputs& inputs, LayerOutputs& outputs);
// The derivative: `outputs` gets all but x. Formulas: head_attention.cc, row_gradients.cc.
ggml_cgraph* layer_gradient_graph(ggml_context* context, const Hparams& hparams, const Weights& weights,
                                  int layer, const LayerInputs& inputs, LayerOutputs& outputs);

// Tensors of either, as a context's size has to be known.
inline constexpr int kLayerGraphTensors = 512;

}  // namespace kvant
