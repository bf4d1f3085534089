// Builds a gated delta net (delta_network.h) for a device's graph. The net consists of ggml operations, for
// which ggml has kernels on GPUs.
#pragma once

#include <span>

#include "model/hparams.h"
#include "model/weights.h"

struct ggml_backend;
struct ggml_cgraph;
struct ggml_context;
struct ggml_tensor;

namespace kvant {

// SliceRun describes consecutive slices of a step that have equally many tokens.
struct SliceRun {
  int n_slices = 0, n_tokens = 0;
  bool operator==(const SliceRun&) const = default;
};

// DeltaStates holds the states of a step's slices, which the graph reads and overwrites. The states have the
// layout of ggml's operations, which consists of transposes of Geometry::state_matrices. `conv` holds each
// channel's newest inputs, and `matrices` holds S^T of each value head, [value channel][key channel].
struct DeltaStates {
  ggml_tensor* conv = nullptr;      // [DeltaNet::conv_values(), n_slices, layers]
  ggml_tensor* matrices = nullptr;  // [DeltaNet::matrix_values(), n_slices, layers]
};

// Returns the largest number of tensors that a layer creates for n_runs runs.
constexpr int delta_net_tensors(int n_runs) {
  return 32 + 48 * n_runs;
}

// Returns whether ggml's operations on the backend support these heads and this convolution. CUDA has kernels
// only for some sizes.
bool device_has_delta_net(const DeltaNet& net, ggml_backend* backend);

// Adds a layer's delta net, which maps h [n_embd, n_rows] to [inner, n_rows]. `place` is the layer's number
// among the delta nets. `runs` covers all slices. The graph writes the new states even if no later operation
// uses the result.
ggml_tensor* add_delta_net(ggml_context* context, ggml_cgraph* graph, const Hparams& hparams,
                           const DeltaNetWeights& weights, const DeltaStates& states, int place,
                           std::span<const SliceRun> runs, ggml_tensor* h);

}  // namespace kvant
