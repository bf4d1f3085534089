// Predictor: what K and V of a token say about those of the next layer, as a model's constants.
//
// K and V of neighbouring layers are linear images of nearly the same vector. So K of a layer is predicted
// from K and V of the layer before, and V from these and from K of its own layer, of all heads, in the
// model's own space: without the Hadamard rotation, and K without its turn by RoPE. In the space of the
// stored values each channel is then predicted further from what the head's channels before it turned out to
// be.
//
// Channels are counted over a layer's heads, side by side. All numbers are integers: a session is read with
// the same probabilities that it was written with, on any machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/channel_turn.h"
#include "base/result.h"
#include "recipe/plan.h"

namespace kvant {

// Inputs: units / 2^kInputShift less their mean, within +-kLargestInput.
inline constexpr int kInputShift = 4;
inline constexpr int kLargestInput = 4095;
inline constexpr int kMultiplierBits = 20;  // fraction of multipliers
inline constexpr int kFollowBits = 14;      // fraction of what follows from a channel
// More inputs would overflow 32 bits: heads of a wide layer are predicted from fewer (head_inputs).
inline constexpr int kMostInputs = 4096;

// Of one side of one (layer, KV head) of d channels.
struct HeadPredictor {
  std::vector<std::int32_t> offsets;      // [d]: the mean in the model's space, in units
  std::vector<std::int16_t> weights;      // [d, inputs]: within +-127
  std::vector<std::int32_t> multipliers;  // [d]: units / 2^kMultiplierBits for 1 of inputs . weights
  std::vector<std::int16_t> follow;       // [d, d]: [i][j], j > i: of channel i's surprise to channel j
  std::vector<std::int32_t> deviations;   // [d]: of what is left, in units, where the gain is usual_gain
  std::int32_t usual_gain = 1;            // in units
};

struct LayerPredictor {
  std::int32_t exponents[2] = {0, 0};  // of K and V: a unit is 2^-exponent
  std::vector<ChannelTurn> turns;      // of each head's K
  std::vector<HeadPredictor> k, v;     // [kv_heads]
  HeadPredictor& head(Side side, int kv_head) { return (side == Side::key ? k : v)[kv_head]; }
  const HeadPredictor& head(Side side, int kv_head) const { return (side == Side::key ? k : v)[kv_head]; }
};

struct Predictor {
  std::vector<LayerPredictor> layers;  // [n_layers] of the plan
  std::uint64_t checksum = 0;          // of its bytes
};

// A run of channels of K or V of a layer.
struct ChannelRun {
  int first = 0, n = 0;
};

// Where the inputs of a head come from: K and V of the layer before, and, for V, K of the own layer, in this
// order. All heads, or of wide layers those of the same part.
struct HeadInputs {
  ChannelRun k_before, v_before, k_own;
  int n() const { return k_before.n + v_before.n + k_own.n; }
};
// before: the layer whose entries lie before this one's in the same pages; -1: none.
HeadInputs head_inputs(const Geometry& geometry, int before, int layer, int kv_head, Side side);

// For each layer the one before it in its entries, or -1.
std::vector<int> layers_before(const Plan& plan);

// Whether pages of this side are predicted at all: trellis codes behind a Hadamard transform, or none.
bool is_predicted(const SidePlan& side, int head_dim);

// As a file's bytes, and back. An error: not what write_predictor() gives for such a plan.
std::vector<std::byte> write_predictor(const Plan& plan, const Predictor& predictor);
Result<Predictor> read_predictor(const Plan& plan, std::span<const std::byte> bytes);

}  // namespace kvant
