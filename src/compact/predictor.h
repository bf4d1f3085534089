// Predictor holds the constants by which a token's K and V of one layer predict its K and V of the next
// layer.
//
// K and V of neighbouring layers are linear functions of nearly the same vector. So a layer's K is predicted
// from K and V of the layer before, and its V also from its own K. All heads take part, in the model's own
// space, which has no Hadamard rotation and no RoPE. The errors of a head's earlier channels then improve the
// prediction of each channel in the space of stored values.
//
// Channels are counted over a layer's heads, side by side. All numbers are integers, so any machine reads a
// session with the probabilities with which the session was written.
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

// Holds the constants of one side of a (layer, KV head) with d channels.
struct HeadPredictor {
  std::vector<std::int32_t> offsets;      // [d]: the mean in the model's space, in units
  std::vector<std::int16_t> weights;      // [d, inputs]: within +-127
  std::vector<std::int32_t> multipliers;  // [d]: units / 2^kMultiplierBits for 1 of inputs . weights
  // [d, d]: [i][j] with j > i is the factor from channel i's error to channel j's prediction.
  std::vector<std::int16_t> follow;
  std::vector<std::int32_t> deviations;  // [d]: deviations of the remaining error, in units, at usual_gain
  std::int32_t usual_gain = 1;           // in units
};

struct LayerPredictor {
  std::int32_t exponents[2] = {0, 0};  // of K and V; a unit is 2^-exponent
  std::vector<ChannelTurn> turns;      // RoPE's rotations of each head's K
  std::vector<HeadPredictor> k, v;     // [kv_heads]
  HeadPredictor& head(Side side, int kv_head) { return (side == Side::key ? k : v)[kv_head]; }
  const HeadPredictor& head(Side side, int kv_head) const { return (side == Side::key ? k : v)[kv_head]; }
};

struct Predictor {
  std::vector<LayerPredictor> layers;  // [n_layers] of the plan
  std::uint64_t checksum = 0;          // The checksum of the predictor's bytes.
};

// Describes a range of channels of a layer's K or V.
struct ChannelRun {
  int first = 0, n = 0;
};

// Lists the channels that are a head's inputs: K and V of the layer before and, for V, K of its own layer, in
// this order. The channels come from all heads, or in wide layers from the heads of one part.
struct HeadInputs {
  ChannelRun k_before, v_before, k_own;
  int n() const { return k_before.n + v_before.n + k_own.n; }
};
// `before` is the layer whose entries precede the entries of `layer` in the same pages, or -1 if there is
// none.
HeadInputs head_inputs(const Geometry& geometry, int before, int layer, int kv_head, Side side);

// Returns for each layer the layer before it in its entries, or -1.
std::vector<int> layers_before(const Plan& plan);

// Returns whether pages of this side are predicted. The pages must have trellis codes, after a Hadamard
// transform or without a transform.
bool is_predicted(const SidePlan& side, int head_dim);

// Write and read the file format of predictors. Reading fails for bytes that write_predictor() would not give
// for the plan.
std::vector<std::byte> write_predictor(const Plan& plan, const Predictor& predictor);
Result<Predictor> read_predictor(const Plan& plan, std::span<const std::byte> bytes);

}  // namespace kvant
