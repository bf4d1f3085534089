// What a layer of a transformer computes, as data: the steps that a token's row goes through. Whatever needs
// to know a layer walks these: the loader of weights, the graphs of the CPU and of devices, and the gradients
// of both. A walker has a function run() for every kind of step; one that lacks a kind does not compile.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <variant>

struct ggml_tensor;

namespace kvant {

struct LayerWeights;
using WeightPlace = ggml_tensor* LayerWeights::*;

// Rows [n_rows, n_embd] that steps read and write.
enum class RowSet : std::uint8_t {
  x,       // the residual stream
  h,       // what a block reads
  y,       // what a block makes, before it is added to x
  beside,  // what the network beside experts makes
};

// The layers whose q and k are turned by RoPE. sliding: the layers with a window, if the model has any.
enum class RotatedLayers : std::uint8_t { all, sliding, all_but_every_fourth };

// A vector of weights: its name in the file, between "blk.N." and the suffix, and its place. A bias has the
// same name.
struct VectorName {
  const char* name;
  WeightPlace weight;
  WeightPlace bias = nullptr;  // only layer norms have one
  const char* suffix = ".weight";
};

// --- before the attention, and the attention ---

// to = norm(from). optional: the file may lack the weights, and then nothing is normed.
struct Norm {
  RowSet from, to;
  VectorName weights;
  bool optional = false;
};
// Projects q, k and v from these rows. gates: the projection of q also gives gates, in the order head of q,
// its gates, next head. Such a layer must have a norm for each head of q.
struct ProjectHeads {
  RowSet from = RowSet::h;
  bool gates = false;
};
// Norms q and k. of_rows: all heads of a token as one row, instead of each head by itself.
struct NormHeads {
  bool of_rows = false;
  bool optional = false;
};
struct TurnHeads {  // RoPE of q and k
  RotatedLayers layers = RotatedLayers::all;
};
struct NormValues {};     // an RMS norm of each head of v, without weights
struct TemperQueries {};  // q grows with the logarithm of its position, if the file says so
// Attention, whose outputs the next step reads. sinks: every query head has a logit that only joins the
// denominator of its softmax.
struct Attend {
  bool sinks = false;
};
// A gated delta net (delta_network.h) instead of attention. With n value heads and m heads of q and k, value
// head h reads head h mod m, or head h / (n / m) where `grouped` is set.
struct RunDeltaNet {
  RowSet from = RowSet::h;
  bool grouped = false;
};

// --- after the attention ---

struct GateHeads {};    // multiplies the outputs of attention by the sigmoid of the gates
struct ProjectBack {};  // projects the outputs of attention or of a delta net to y
struct Add {            // to += from; rows that are added to x may have a scale
  RowSet from = RowSet::y, to = RowSet::x;
};

// --- networks ---

struct RunNetwork {  // Architecture::unit says which
  RowSet from = RowSet::h, to = RowSet::y;
};
struct RouteRows {  // the router reads these rows
  RowSet from = RowSet::h;
};
struct RunExperts {  // the chosen experts and the network that they share give y
  RowSet from = RowSet::h;
  bool scaled = false;  // the file may have scales for the experts' outputs
};
struct ScaleByWidth {  // rows /= sqrt(n_embd)
  RowSet rows;
};

// --- after the networks ---

struct ReadLayerInput {};  // y = W (gelu(gate x) * the layer's own embedding of the token)
struct ScaleLayer {};      // x is multiplied by a number of the layer's own, if the file has one

using LayerStep = std::variant<Norm, ProjectHeads, NormHeads, TurnHeads, NormValues, TemperQueries, Attend,
                               RunDeltaNet, GateHeads, ProjectBack, Add, RunNetwork, RouteRows, RunExperts,
                               ScaleByWidth, ReadLayerInput, ScaleLayer>;
using LayerSteps = std::span<const LayerStep>;

// The parts of a layer, in order. A layer has one of the first two, and one of `network` and `experts`; it
// has `inputs` where layers have embeddings of their own.
struct LayerProgram {
  LayerSteps attention, delta_net;  // up to Attend or RunDeltaNet
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

// Whether a step of kind A comes before the first of kind B.
template <class A, class B>
constexpr bool comes_before(LayerSteps steps) {
  for (const LayerStep& step : steps) {
    if (std::holds_alternative<A>(step)) return true;
    if (std::holds_alternative<B>(step)) return false;
  }
  return false;
}

// Finds the first step of a kind. Null says that there is none.
template <class Kind>
constexpr const Kind* find_step(LayerSteps steps) {
  for (const LayerStep& step : steps)
    if (const Kind* found = std::get_if<Kind>(&step)) return found;
  return nullptr;
}

}  // namespace kvant
