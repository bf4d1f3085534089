#include "calibrate/rope_turns.h"

#include <cmath>
#include <numbers>

#include "calibrate/rope_table.h"
#include "model/hparams.h"

namespace kvant {
namespace {

// Derives a layer's rotations from the images of unit vectors at position 1.
std::vector<ChannelTurn> turns_of_layer(const ModelParts& model, int layer, int head_dim, int n_threads) {
  const Hparams& h = model.hparams;
  const bool slides = h.sliding_window[layer] > 0;
  if (!h.rotated[layer] || h.n_rot == 0 || h.n_rot > head_dim ||
      (slides && h.sliding_n_rot > 0 && h.sliding_n_rot != h.n_rot))
    return {};
  const RopeTable table(model, layer, /*n_rows=*/2, n_threads);
  std::vector<ChannelTurn> turns;
  for (int i = 0; i < h.n_rot / 2; ++i) {
    const int first = h.rope_neox ? i : 2 * i, second = h.rope_neox ? i + h.n_rot / 2 : 2 * i + 1;
    std::vector<float> x(head_dim, 0.0F);
    x[first] = 1;
    table.turn(1, x.data());
    const double whole = std::atan2(x[second], x[first]) / (2 * std::numbers::pi);
    const double positive = whole < 0 ? whole + 1 : whole;
    turns.push_back({first, second, static_cast<std::uint64_t>(std::ldexp(positive, 64))});
  }
  return turns;
}

}  // namespace

std::vector<std::vector<ChannelTurn>> rope_turns(const ModelParts& model, const Geometry& geometry,
                                                 int n_threads) {
  std::vector<std::vector<ChannelTurn>> turns;
  for (int layer = 0; layer < geometry.n_layers; ++layer)
    turns.push_back(turns_of_layer(model, layer, geometry.dim(layer), n_threads));
  return turns;
}

void turn_row(std::span<const ChannelTurn> turns, int n_tokens, float* row) {
  for (const ChannelTurn& turn : turns) {
    // Whole turns vanish when the product overflows, so the angle needs no reduction.
    const auto turned =
        static_cast<std::int64_t>(turn.step * static_cast<std::uint64_t>(std::int64_t{n_tokens}));
    const double angle = std::ldexp(static_cast<double>(turned), -64) * 2 * std::numbers::pi;
    const double a = row[turn.first], b = row[turn.second];
    row[turn.first] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
    row[turn.second] = static_cast<float>(b * std::cos(angle) + a * std::sin(angle));
  }
}

}  // namespace kvant
