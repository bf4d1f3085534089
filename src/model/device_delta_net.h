// A gated delta net (delta_network.h) as operations of a device's graph.
#pragma once

#include <span>

#include "model/hparams.h"
#include "model/weights.h"

struct ggml_backend;
struct ggml_cgraph;
struct ggml_context;
struct ggml_tensor;

namespace kvant {

// Slices of a step, one after another, that have as many tokens each.
struct SliceRun {
  int n_slices = 0, n_tokens = 0;
  bool operator==(const SliceRun&) const = default;
};

// The states of a step's slices: what they are before the graph, and after it. A layer's state lies as ggml's
// operations have it, the transposes of Geometry::state_matrices: of each channel its newest inputs, and of
// each value head S^T, [value channel][key channel].
struct DeltaStates {
  ggml_tensor* conv = nullptr;      // [DeltaNet::conv_values(), n_slices, layers]
  ggml_tensor* matrices = nullptr;  // [DeltaNet::matrix_values(), n_slices, layers]
};

// Tensors that a layer with so many runs makes, at most.
constexpr int delta_net_tensors(int n_runs) {
  return 32 + 48 * n_runs;
}

// What ggml's operations ask of the heads and of the convolution: those of CUDA have kernels for some alone.
bool device_has_delta_net(const DeltaNet& net, ggml_backend* backend);

// h [n_embd, n_rows] -> [inner, n_rows]. place: the layer's among its kind. The new states are written, even
// if nobody computes the result. runs: of all slices.
ggml_tensor* add_delta_net(ggml_context* context, ggml_cgraph* graph, const Hparams& hparams,
                           const DeltaNetWeights& weights, const DeltaStates& states, int place,
                           std::span<const SliceRun> runs, ggml_tensor* h);

}  // namespace kvant
