// Predictor: the constants by which a token's K and V of one layer predict those of the next.
//
// K and V of neighbouring layers are linear functions of nearly the same vector. So a layer's K is predicted
// from K and V of the layer before, and its V from these and from its own K. All heads take part, in the
// model's own space: without the Hadamard rotation, and K without RoPE. In the space of stored values, each
// channel is then predicted further from the errors of the head's earlier channels.
//
// Channels are counted over a layer's heads, side by side. All numbers are integers, so a session is
// read with the probabilities that it was written with, on any machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/channel_turn.h"
#include "base/result.h"
#include "recipe/plan.h"

namespace kvant {

// Inputs are units / 2^kInputShift less their mean, clamped to +-kLargestInput.
inline constexpr int kInputShift = 4;
inline constexpr int kLargestInput = 4095;
inline constexpr int kMultiplierBits = 20;  // fraction bits of multipliers
inline constexpr int kFollowBits = 14;      // fraction bits of `follow`
// More inputs would overflow 32 bits. The heads of a wide layer are predicted from fewer inputs
// (head_inputs).
inline constexpr int kMostInputs = 4096;

// The constants of one side of a (layer, KV head) with d channels.
struct HeadPredictor {
  std::vector<std::int32_t> offsets;      // [d]: the mean in the model's space, in units
  std::vector<std::int16_t> weights;      // [d, inputs]: within +-127
  std::vector<std::int32_t> multipliers;  // [d]: units / 2^kMultiplierBits for 1 of inputs . weights
  // [d, d]: [i][j], j > i: factor from channel i's error to channel j's prediction
  std::vector<std::int16_t> follow;
  std::vector<std::int32_t> deviations;  // [d]: of the remaining error, in units, at usual_gain
  std::int32_t usual_gain = 1;           // in units
};

struct LayerPredictor {
  std::int32_t exponents[2] = {0, 0};  // of K and V: a unit is 2^-exponent
  std::vector<ChannelTurn> turns;      // RoPE's rotations of each head's K
  std::vector<HeadPredictor> k, v;     // [kv_heads]
  HeadPredictor& head(Side side, int kv_head) { return (side == Side::key ? k : v)[kv_head]; }
  const HeadPredictor& head(Side side, int kv_head) const { return (side == Side::key ? k : v)[kv_head]; }
};

struct Predictor {
  std::vector<LayerPredictor> layers;  // [n_layers] of the plan
  std::uint64_t checksum = 0;          // checksum of its bytes
};

// A range of channels of a layer's K or V.
struct ChannelRun {
  int first = 0, n = 0;
};

// The channels that are a head's inputs: K and V of the layer before and, for V, K of its own layer, in this
// order. They are from all heads; in wide layers, from the heads of the same part.
struct HeadInputs {
  ChannelRun k_before, v_before, k_own;
  int n() const { return k_before.n + v_before.n + k_own.n; }
};
// before: the layer whose entries precede this one's in the same pages; -1: none.
HeadInputs head_inputs(const Geometry& geometry, int before, int layer, int kv_head, Side side);

// Returns for each layer the one before it in its entries, or -1.
std::vector<int> layers_before(const Plan& plan);

// Returns whether pages of this side are predicted: they must have trellis codes, after a Hadamard transform
// or none.
bool is_predicted(const SidePlan& side, int head_dim);

// The file format of predictors. Reading fails for bytes that write_predictor() would not give for such a
// plan.
std::vector<std::byte> write_predictor(const Plan& plan, const Predictor& predictor);
Result<Predictor> read_predictor(const Plan& plan, std::span<const std::byte> bytes);

}  // namespace kvant
