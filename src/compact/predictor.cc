// Reads and writes the bytes of a predictor: magic and version (u32 each), then the layers. A layer has both
// exponents (i32), the number of rotations (i32), the rotations, then K and V of each KV head. A predicted
// side has offsets, weights (i8), multipliers, `follow` factors of each channel, deviations, and the usual
// gain.
#include "compact/predictor.h"

#include <algorithm>

#include "base/checksum.h"
#include "cache/byte_stream.h"
#include "cache/layer_groups.h"
#include "compact/trellis_page.h"

namespace kvant {
namespace {

constexpr std::uint32_t kPredictorMagic = 0x6470766b;  // The characters "kvpd".
constexpr std::uint32_t kPredictorVersion = 1;
constexpr std::int32_t kLargestExponent = 100;

// Returns the channels of a layer's heads that belong to part i of n.
ChannelRun run_of_part(const Geometry& g, int layer, int i, int n) {
  const int heads = g.kv_heads(layer), d = g.dim(layer);
  const int first = heads * i / n, end = std::max(first + 1, heads * (i + 1) / n);
  return {first * d, (std::min(end, heads) - first) * d};
}

void write_head(ByteWriter& to, const HeadPredictor& head) {
  to.write_all(std::span(head.offsets));
  for (const std::int16_t weight : head.weights) to.write(static_cast<std::int8_t>(weight));
  to.write_all(std::span(head.multipliers));
  const std::size_t d = head.offsets.size();
  for (std::size_t i = 0; i < d; ++i) to.write_all(std::span(head.follow).subspan(i * d + i + 1, d - i - 1));
  to.write_all(std::span(head.deviations));
  to.write(head.usual_gain);
}

HeadPredictor read_head(ByteReader& from, int d, int n_inputs) {
  HeadPredictor head;
  head.offsets = from.read_all<std::int32_t>(d);
  const auto weights = from.read_all<std::int8_t>(static_cast<std::size_t>(d) * n_inputs);
  head.weights.assign(weights.begin(), weights.end());
  head.multipliers = from.read_all<std::int32_t>(d);
  head.follow.resize(static_cast<std::size_t>(d) * d);
  for (int i = 0; i < d; ++i)
    std::ranges::copy(from.read_all<std::int16_t>(d - i - 1), &head.follow[i * d + i] + 1);
  head.deviations = from.read_all<std::int32_t>(d);
  head.usual_gain = from.read<std::int32_t>();
  from.require(
      head.usual_gain > 0 && std::ranges::all_of(head.deviations, [](std::int32_t x) { return x > 0; }) &&
      std::ranges::all_of(head.offsets, [](std::int32_t x) { return std::abs(x) <= kLargestUnits; }) &&
      std::ranges::none_of(weights, [](std::int8_t x) { return x == -128; }));
  return head;
}

}  // namespace

HeadInputs head_inputs(const Geometry& g, int before, int layer, int kv_head, Side side) {
  const int own = g.kv_heads(layer) * g.dim(layer);
  const int all = (before < 0 ? 0 : 2 * g.kv_heads(before) * g.dim(before)) + own;
  int n = (all + kMostInputs - 1) / kMostInputs;
  while (g.kv_heads(layer) % n != 0) ++n;
  const int part = kv_head / (g.kv_heads(layer) / n);
  HeadInputs inputs;
  if (before >= 0) inputs.k_before = inputs.v_before = run_of_part(g, before, part, n);
  if (side == Side::value) inputs.k_own = run_of_part(g, layer, part, n);
  return inputs;
}

std::vector<int> layers_before(const Plan& plan) {
  std::vector<int> before(plan.geometry.n_layers, -1);
  for (const LayersOfEntry& group : layer_groups(plan))
    for (std::size_t i = 1; i < group.layers.size(); ++i) before[group.layers[i]] = group.layers[i - 1];
  return before;
}

bool is_predicted(const SidePlan& side, int head_dim) {
  const bool known_space =
      side.transform_names.empty() || side.transform_names == std::vector<std::string>{"hadamard"};
  return known_space && trellis_bits(*side.sealed, head_dim) > 0;
}

std::vector<std::byte> write_predictor(const Plan& plan, const Predictor& predictor) {
  ByteWriter to;
  to.write(kPredictorMagic);
  to.write(kPredictorVersion);
  const Geometry& g = plan.geometry;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    const LayerPredictor& of_layer = predictor.layers[layer];
    to.write(of_layer.exponents);
    to.write(static_cast<std::int32_t>(of_layer.turns.size()));
    for (const ChannelTurn& turn : of_layer.turns) {
      to.write(turn.first);
      to.write(turn.second);
      to.write(turn.step);
    }
    for (int h = 0; h < g.kv_heads(layer); ++h) {
      for (const Side side : kSides)
        if (is_predicted(plan.head(layer, h).side(side), g.dim(layer)))
          write_head(to, of_layer.head(side, h));
    }
  }
  return to.take();
}

Result<Predictor> read_predictor(const Plan& plan, std::span<const std::byte> bytes) {
  ByteReader from(bytes);
  from.require(from.read<std::uint32_t>() == kPredictorMagic);
  from.require(from.read<std::uint32_t>() == kPredictorVersion);
  const Geometry& g = plan.geometry;
  const std::vector<int> before = layers_before(plan);
  Predictor predictor{.checksum = checksum(bytes)};
  for (int layer = 0; layer < g.n_layers && from.ok(); ++layer) {
    LayerPredictor& of_layer = predictor.layers.emplace_back();
    const int d = g.dim(layer);
    for (std::int32_t& exponent : of_layer.exponents)
      exponent = from.read_int(-kLargestExponent, kLargestExponent);
    const int n_turns = from.read_int(0, d / 2);
    for (int i = 0; i < n_turns && from.ok(); ++i) {
      ChannelTurn turn{};
      turn.first = from.read_int(0, d - 1);
      turn.second = from.read_int(0, d - 1);
      turn.step = from.read<std::uint64_t>();
      of_layer.turns.push_back(turn);
    }
    of_layer.k.resize(g.kv_heads(layer));
    of_layer.v.resize(g.kv_heads(layer));
    for (int h = 0; h < g.kv_heads(layer) && from.ok(); ++h) {
      for (const Side side : kSides) {
        if (!is_predicted(plan.head(layer, h).side(side), d)) continue;
        of_layer.head(side, h) = read_head(from, d, head_inputs(g, before[layer], layer, h, side).n());
      }
    }
  }
  from.require(from.at_end());
  if (!from.ok()) return error("these {} bytes are no predictor for this model and recipe", bytes.size());
  return predictor;
}

}  // namespace kvant
