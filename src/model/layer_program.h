// Describes what a layer of a transformer computes, as data: a list of steps. All code that needs to know a
// layer walks the list. That code includes the loader of weights, the graphs of the CPU and of devices, and
// the gradients of both. A walker has a function run() for every kind of step; if a run() is missing, the
// code does not compile.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <variant>

struct ggml_tensor;

namespace kvant {

struct LayerWeights;
using WeightPlace = ggml_tensor* LayerWeights::*;

// RowSet names rows [n_rows, n_embd] that steps read and write.
enum class RowSet : std::uint8_t {
  x,      // the residual stream
  h,      // the inputs of a block
  y,      // the outputs of a block, before they are added to x
  dense,  // the outputs of a dense network next to experts
};

// RotatedLayers says in which layers RoPE rotates q and k. `sliding` means the layers with a window, if the
// model has any.
enum class RotatedLayers : std::uint8_t { all, sliding, all_but_every_fourth };

// VectorName describes a vector of weights by the place in LayerWeights, and by the name in the file between
// "blk.N." and the suffix. The bias has the same name with the suffix ".bias".
struct VectorName {
  const char* name;
  WeightPlace weight;
  WeightPlace bias = nullptr;  // only layer norms have one
  const char* suffix = ".weight";
};

// The steps from ProjectHeads to RunDeltaNet belong to attention, or to a delta net in its place. Every block
// may have a Norm.

// Computes to = norm(from). With `optional`, the file may lack the weights; the step then does nothing.
struct Norm {
  RowSet from, to;
  VectorName weights;
  bool optional = false;
};
// Projects q, k and v from the rows `from`. With `gates`, the projection of q alternates between a head of q
// and the head's gates. A layer with gates must have a norm for each head of q.
struct ProjectHeads {
  RowSet from = RowSet::h;
  bool gates = false;
};
// Norms q and k, head by head. With of_rows, all heads of a token are normed as one row.
struct NormHeads {
  bool of_rows = false;
  bool optional = false;
};
struct TurnHeads {  // applies RoPE to q and k
  RotatedLayers layers = RotatedLayers::all;
};
struct NormValues {};     // applies an RMS norm without weights to each head of v
struct TemperQueries {};  // multiplies q by a factor that grows with the logarithm of its position, if the
                          // file says so
// Attends; the next step reads the outputs. With `sinks`, every query head has a logit that only joins the
// denominator of its softmax.
struct Attend {
  bool sinks = false;
};
// Runs a gated delta net (delta_network.h) in place of attention. A layer has n value heads and m heads of q
// and k. Value head h reads head h mod m, or head h / (n / m) if `grouped`.
struct RunDeltaNet {
  RowSet from = RowSet::h;
  bool grouped = false;
};

// GateHeads and ProjectBack follow attention. Add ends every block.

struct GateHeads {};    // multiplies the outputs of attention by the sigmoid of the gates
struct ProjectBack {};  // projects the outputs of attention or of a delta net to y
struct Add {            // computes to += from; rows that are added to x may have a scale
  RowSet from = RowSet::y, to = RowSet::x;
};

// The steps from RunNetwork to ScaleByWidth run feed-forward networks.

struct RunNetwork {  // Architecture::unit describes the network
  RowSet from = RowSet::h, to = RowSet::y;
};
struct RouteRows {  // the router reads the rows `from`
  RowSet from = RowSet::h;
};
struct RunExperts {  // adds up the chosen experts and the network that all rows share, to y
  RowSet from = RowSet::h;
  bool scaled = false;  // the file may have scales for the experts' outputs
};
struct ScaleByWidth {  // computes rows /= sqrt(n_embd)
  RowSet rows;
};

// ReadLayerInput and ScaleLayer end a layer.

struct ReadLayerInput {};  // computes y = W (gelu(gate x) * the layer's own embedding of the token)
struct ScaleLayer {};      // multiplies x by the layer's own number, if the file has one

using LayerStep = std::variant<Norm, ProjectHeads, NormHeads, TurnHeads, NormValues, TemperQueries, Attend,
                               RunDeltaNet, GateHeads, ProjectBack, Add, RunNetwork, RouteRows, RunExperts,
                               ScaleByWidth, ReadLayerInput, ScaleLayer>;
using LayerSteps = std::span<const LayerStep>;

// LayerProgram holds the steps of a layer in groups. A layer runs `attention` or `delta_net`, then `back`,
// then `network` or `experts`, then `inputs` if layers have embeddings of their own, and then `end`.
struct LayerProgram {
  LayerSteps attention, delta_net;  // each list ends with Attend or RunDeltaNet
  LayerSteps back;
  LayerSteps network, experts;
  LayerSteps inputs;
  LayerSteps end;
};

template <class T, class... Kinds>
concept one_of = (std::is_same_v<T, Kinds> || ...);

template <class Walker>
void walk(LayerSteps steps, Walker&& walker) {
  for (const LayerStep& step : steps) std::visit([&](const auto& one) { walker.run(one); }, step);
}

// Returns whether a step of kind A comes before the first step of kind B.
template <class A, class B>
constexpr bool comes_before(LayerSteps steps) {
  for (const LayerStep& step : steps) {
    if (std::holds_alternative<A>(step)) return true;
    if (std::holds_alternative<B>(step)) return false;
  }
  return false;
}

// Returns the first step of a kind, or null if there is none.
template <class Kind>
constexpr const Kind* find_step(LayerSteps steps) {
  for (const LayerStep& step : steps)
    if (const Kind* found = std::get_if<Kind>(&step)) return found;
  return nullptr;
}

}  // namespace kvant
