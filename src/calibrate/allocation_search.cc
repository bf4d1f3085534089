#include "calibrate/allocation_search.h"

#include <algorithm>
#include <cmath>

#include "format/format.h"
#include "recipe/bit_allocation.h"

namespace kvant {
namespace {

struct Direction {
  double SensitivityBend::*number;
  double step;  // the initial step
};
constexpr Direction kDirections[] = {{&SensitivityBend::keys, 1},
                                     {&SensitivityBend::contrast, 0.2},
                                     {&SensitivityBend::curve, 0.2},
                                     {&SensitivityBend::depth, 1.5}};
constexpr double kSmallestStep = 0.2;  // share of the initial step

std::vector<float> bent(std::span<const float> sensitivities, std::size_t probe, double factor,
                        const SensitivityBend& bend) {
  std::vector<float> result(sensitivities.begin(), sensitivities.end());
  const double base = sensitivities[probe];
  if (base <= 0) return result;
  for (float& sensitivity : result) {
    const double ratio = std::pow(sensitivity / base, 1 + bend.curve);
    sensitivity = static_cast<float>(factor * std::pow(base, 1 + bend.contrast) * ratio);
  }
  return result;
}

}  // namespace

Constants bent_sensitivities(const Constants& constants, const Recipe& recipe, const Geometry& geometry,
                             const SensitivityBend& bend) {
  Constants result = constants;
  const std::string name = sensitivity_constant(recipe);
  const std::string probe_name = probe_format(recipe, geometry.head_dim).name();
  const auto probe = std::find(recipe.ladder.begin(), recipe.ladder.end(), probe_name);
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    const double depth = geometry.n_layers > 1 ? static_cast<double>(layer) / (geometry.n_layers - 1) : 0;
    for (int head = 0; head < geometry.kv_heads(layer); ++head) {
      for (const Side side : kSides) {
        const auto sensitivities = constants.find(layer, head, side, name);
        if (sensitivities.empty()) continue;
        const double factor = std::exp2(bend.depth * depth + (side == Side::key ? bend.keys : 0));
        result.set(layer, head, side, name, bent(sensitivities, probe - recipe.ladder.begin(), factor, bend));
      }
    }
  }
  return result;
}

Result<std::vector<BendTrial>> search_bends(
    int n_trials, const std::function<Result<double>(const SensitivityBend&)>& measure) {
  std::vector<BendTrial> trials;
  // Returns whether `bend` is new and better than all bends before it.
  const auto improves = [&](const SensitivityBend& bend) -> Result<bool> {
    const auto known = [&](const BendTrial& trial) { return trial.bend == bend; };
    if (std::any_of(trials.begin(), trials.end(), known)) return false;
    const auto divergence = measure(bend);
    if (!divergence.ok()) return divergence.error();
    const bool better = trials.empty() || *divergence < best_trial(trials).divergence;
    trials.push_back({bend, *divergence});
    return better;
  };
  if (const auto first = improves({}); !first.ok()) return first.error();
  SensitivityBend best;
  for (double scale = 1; scale > kSmallestStep;) {
    bool moved = false;
    for (const Direction& direction : kDirections) {
      for (const double sign : {1.0, -1.0}) {
        if (std::ssize(trials) >= n_trials) return trials;
        SensitivityBend next = best;
        next.*direction.number += sign * scale * direction.step;
        const auto better = improves(next);
        if (!better.ok()) return better.error();
        if (!*better) continue;
        best = next;
        moved = true;
        break;
      }
    }
    if (!moved) scale /= 2;
  }
  return trials;
}

const BendTrial& best_trial(const std::vector<BendTrial>& trials) {
  return *std::min_element(trials.begin(), trials.end(), [](const BendTrial& a, const BendTrial& b) {
    return a.divergence < b.divergence;
  });
}

}  // namespace kvant
