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

// The layers whose q and k RoPE turns. sliding: those with a window, where there are any.
enum class RotatedLayers : std::uint8_t { all, sliding, all_but_every_fourth };

// A vector of weights: its name in the file, between "blk.N." and the suffix, and its place. A bias has the
// same name.
struct VectorName {
  const char* name;
  WeightPlace weight;
  WeightPlace bias = nullptr;  // which layer norms alone have
  const char* suffix = ".weight";
};

// --- before the attention, and the attention ---

// to = norm(from). Where the file may lack the weights, the step falls away without them.
struct Norm {
  RowSet from, to;
  VectorName weights;
  bool optional = false;
};
// q, k and v are projected from these rows. gates: q's projection gives gates, too: a head of q, its gates,
// the next head; those ask for a norm of each head of q.
struct ProjectHeads {
  RowSet from = RowSet::h;
  bool gates = false;
};
// Of q and k: of each head, or of all heads of a token as one row.
struct NormHeads {
  bool of_rows = false;
  bool optional = false;
};
struct TurnHeads {  // RoPE of q and k
  RotatedLayers layers = RotatedLayers::all;
};
struct NormValues {};     // an RMS norm of each head of v, without weights
struct TemperQueries {};  // q grows with the logarithm of its position, if the file says so
// What heads attend to becomes what the next step reads. sinks: every query head has a logit that only joins
// its softmax's denominator.
struct Attend {
  bool sinks = false;
};
// A gated delta net (delta_network.h) instead of attention: of n value heads and m heads of q and k value
// head h reads head h mod m; grouped: head h / (n / m).
struct RunDeltaNet {
  RowSet from = RowSet::h;
  bool grouped = false;
};

// --- behind it ---

struct GateHeads {};    // what was attended to is multiplied by the sigmoid of the gates
struct ProjectBack {};  // what was attended to, or what a delta net gives, is projected to y
struct Add {            // to += from; what is added to x may have a scale
  RowSet from = RowSet::y, to = RowSet::x;
};

// --- networks ---

struct RunNetwork {  // Architecture::unit says which
  RowSet from = RowSet::h, to = RowSet::y;
};
struct RouteRows {  // the router reads these rows
  RowSet from = RowSet::h;
};
struct RunExperts {  // those that were routed to, and the network that they share, give y
  RowSet from = RowSet::h;
  bool scaled = false;  // the file may give scales of their outputs
};
struct ScaleByWidth {  // rows /= sqrt(n_embd)
  RowSet rows;
};

// --- behind networks ---

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
