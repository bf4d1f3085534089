// Builds a gated delta net (delta_network.h) from operations of a device's graph.
#pragma once

#include <span>

#include "model/hparams.h"
#include "model/weights.h"

struct ggml_backend;
struct ggml_cgraph;
struct ggml_context;
struct ggml_tensor;

namespace kvant {

// Consecutive slices of a step that have equally many tokens each.
struct SliceRun {
  int n_slices = 0, n_tokens = 0;
  bool operator==(const SliceRun&) const = default;
};

// Holds the states of a step's slices, before and after the graph. A layer's state is laid out for ggml's
// operations, as transposes of Geometry::state_matrices: each channel's newest inputs, then S^T of each value
// head, [value channel][key channel].
struct DeltaStates {
  ggml_tensor* conv = nullptr;      // [DeltaNet::conv_values(), n_slices, layers]
  ggml_tensor* matrices = nullptr;  // [DeltaNet::matrix_values(), n_slices, layers]
};

// The most tensors that a layer makes for so many runs.
constexpr int delta_net_tensors(int n_runs) {
  return 32 + 48 * n_runs;
}

// Returns whether ggml's operations support these heads and this convolution. CUDA has kernels only for some.
bool device_has_delta_net(const DeltaNet& net, ggml_backend* backend);

// Maps h [n_embd, n_rows] to [inner, n_rows]. `place` is the layer's number among the delta nets; `runs`
// covers all slices. The new states are written even if nobody computes the result.
ggml_tensor* add_delta_net(ggml_context* context, ggml_cgraph* graph, const Hparams& hparams,
                           const DeltaNetWeights& weights, const DeltaStates& states, int place,
                           std::span<const SliceRun> runs, ggml_tensor* h);

}  // namespace kvant
