// Builds the graphs of one layer on a whole context, and of the layer's derivative, in F32. The derivative
// repeats the layer's steps in reverse order.
#pragma once

#include "model/hparams.h"
#include "model/weights.h"

struct ggml_cgraph;
struct ggml_context;
struct ggml_tensor;

namespace kvant {

// LayerInputs holds the inputs of a layer's graphs, in memory of their own. Shapes are in ggml's order:
// [columns, rows].
struct LayerInputs {
  ggml_tensor* x;             // [n_embd, n_rows], the residual stream before the layer
  ggml_tensor* gradient;      // [n_embd, n_rows], the gradient by the layer's outputs
  ggml_tensor* positions;     // I32 [n_rows]
  ggml_tensor* numbers;       // I32 [most rows of a weight]: 0, 1, 2, ...
  ggml_tensor* mask;          // [keys, queries], 0, or -inf for keys to which the query does not attend
  ggml_tensor* sliding_mask;  // the mask for layers with a window
  ggml_tensor* sealed;        // [keys, queries], 1 for keys on pages before the query's own, else 0
  ggml_tensor* after_sink;    // [n_rows], 0 for the sink's tokens, else 1
};

// LayerOutputs holds the results that a graph leaves in its memory.
struct LayerOutputs {
  ggml_tensor* x;                  // [n_embd, n_rows], the residual stream after the layer
  ggml_tensor* gradient;           // [n_embd, n_rows], the gradient by the residual stream before the layer
  ggml_tensor* k;                  // [head_dim, n_rows, n_kv_heads], after RoPE
  ggml_tensor* v;                  // [head_dim, n_rows, n_kv_heads]
  ggml_tensor* q;                  // [head_dim, n_rows, n_heads], after RoPE
  ggml_tensor* attended_gradient;  // [head_dim, n_rows, n_heads], the gradient by the heads' outputs
  ggml_tensor* moments;            // [head_dim, head_dim, n_kv_heads], LayerGradient::query_moments
};

// Returns the graph of the layer. Weights of any type are expanded to F32 in the graph. Only `x` of `outputs`
// is set.
ggml_cgraph* layer_graph(ggml_context* context, const Hparams& hparams, const Weights& weights, int layer,
                         const LayerInputs& inputs, LayerOutputs& outputs);
// Returns the graph of the derivative. All of `outputs` except `x` is set. head_attention.cc and
// row_gradients.cc state the formulas.
ggml_cgraph* layer_gradient_graph(ggml_context* context, const Hparams& hparams, const Weights& weights,
                                  int layer, const LayerInputs& inputs, LayerOutputs& outputs);

// Each of the two graphs has at most this many tensors. ggml needs the number to size a context.
inline constexpr int kLayerGraphTensors = 512;

}  // namespace kvant
