#include "recipe/bit_allocation.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "base/check.h"
#include "recipe/plan.h"
#include "transform/calibrated_constants.h"

namespace kvant {
namespace {

// Lists the formats of the recipe's ladder for heads with head_dim channels, in the order of increasing bits.
struct Ladder {
  int head_dim = 0;
  std::vector<const Format*> formats;
  std::vector<double> bits;
  // place[i] is the position of formats[i] in Recipe::ladder. A unit's sensitivities are stored in the order
  // of Recipe::ladder.
  std::vector<std::size_t> place;
};

struct Unit {
  const Ladder* ladder = nullptr;
  int layer = 0;
  int kv_head = 0;
  Side side = Side::key;
  // Holds one number for each format of Recipe::ladder.
  std::span<const float> sensitivity;
  std::size_t level = 0;  // index of the current format in the Ladder
  // Holds the unit's number of values, divided by the number of values of a unit with the largest head_dim.
  double weight = 1;
};

Ladder sorted_ladder(const Recipe& recipe, int head_dim) {
  Ladder ladder{.head_dim = head_dim};
  for (std::size_t i = 0; i < recipe.ladder.size(); ++i) ladder.place.push_back(i);
  const auto bits_at = [&](std::size_t i) { return find_format(recipe.ladder[i])->bits(head_dim); };
  std::stable_sort(ladder.place.begin(), ladder.place.end(),
                   [&](std::size_t a, std::size_t b) { return bits_at(a) < bits_at(b); });
  for (const std::size_t i : ladder.place) {
    ladder.formats.push_back(find_format(recipe.ladder[i]));
    ladder.bits.push_back(bits_at(i));
  }
  return ladder;
}

// Returns one ladder for each head_dim of the model.
std::vector<Ladder> sorted_ladders(const Recipe& recipe, const Geometry& geometry) {
  std::vector<Ladder> ladders;
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    const auto is_it = [&](const Ladder& ladder) { return ladder.head_dim == geometry.dim(layer); };
    if (std::none_of(ladders.begin(), ladders.end(), is_it))
      ladders.push_back(sorted_ladder(recipe, geometry.dim(layer)));
  }
  return ladders;
}

bool is_overridden(const Recipe& recipe, int layer, int kv_head, Side side) {
  const SideRecipe& found = side_of(recipe, side, layer, kv_head);
  return &found != &recipe.k && &found != &recipe.v;
}

Error too_small(const Recipe& recipe, const Ladder& ladder) {
  return error("budget={} is less than the {:.3f} bits of {}, the smallest format of the ladder",
               recipe.budget, ladder.bits.front(), ladder.formats.front()->name());
}

// Gives K and V one format in all layers and heads, except where the recipe's own overrides apply.
Result<Recipe> allocate_evenly(const Recipe& recipe, const std::vector<Ladder>& ladders) {
  const auto fits = [&](const Format& format) {
    return std::all_of(ladders.begin(), ladders.end(),
                       [&](const Ladder& ladder) { return format.bits(ladder.head_dim) <= recipe.budget; });
  };
  const Format* best = nullptr;
  for (const Format* format : ladders.front().formats)
    if (fits(*format)) best = format;
  if (best == nullptr) return too_small(recipe, ladders.front());
  Recipe allocated = recipe;
  allocated.k.format = allocated.v.format = best->name();
  return allocated;
}

Result<std::vector<Unit>> units_of(const Recipe& recipe, const Geometry& geometry, const Constants* constants,
                                   const std::vector<Ladder>& ladders) {
  std::vector<Unit> units;
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    const auto ladder = std::find_if(ladders.begin(), ladders.end(), [&](const Ladder& of_size) {
      return of_size.head_dim == geometry.dim(layer);
    });
    const double weight = static_cast<double>(ladder->head_dim) / geometry.head_dim;
    for (int head = 0; head < geometry.kv_heads(layer); ++head) {
      for (const Side side : kSides) {
        if (is_overridden(recipe, layer, head, side)) continue;
        const auto sensitivity = calibrated_constants(HeadConstants{constants, layer, head, side},
                                                      sensitivity_constant(recipe), recipe.ladder.size());
        if (!sensitivity.ok()) return sensitivity.error();
        units.push_back({&*ladder, layer, head, side, *sensitivity, 0, weight});
      }
    }
  }
  return units;
}

struct Raise {
  double gain_per_bit = 0;
  Unit* unit = nullptr;
  std::size_t level = 0;
};

// Finds the raise of `unit` that gains most per bit among the raises by at most `spare` bits. A raise may
// skip a level, because a unit's sensitivities need not be convex.
Raise best_raise(Unit& unit, double spare) {
  const Ladder& ladder = *unit.ladder;
  Raise best;
  for (std::size_t level = unit.level + 1; level < ladder.bits.size(); ++level) {
    const double more = unit.weight * (ladder.bits[level] - ladder.bits[unit.level]);
    if (more <= 0 || more > spare) continue;
    const double gain = unit.sensitivity[ladder.place[unit.level]] - unit.sensitivity[ladder.place[level]];
    if (gain / more > best.gain_per_bit) best = {gain / more, &unit, level};
  }
  return best;
}

// Raises units until no raise fits into `spare`, the bits per value that remain for all units together.
// Raising a unit costs its additional bits per value times Unit::weight.
void raise_levels(std::vector<Unit>& units, double spare) {
  for (;;) {
    Raise best;
    for (Unit& unit : units) {
      const Raise raise = best_raise(unit, spare);
      if (raise.gain_per_bit > best.gain_per_bit) best = raise;
    }
    if (best.unit == nullptr) return;
    const std::vector<double>& bits = best.unit->ladder->bits;
    spare -= best.unit->weight * (bits[best.level] - bits[best.unit->level]);
    best.unit->level = best.level;
  }
}

}  // namespace

std::string sensitivity_constant(const Recipe& recipe) {
  return fmt::format("sensitivity/{}", fmt::join(recipe.ladder, "+"));
}

const Format& probe_format(const Recipe& recipe, int head_dim) {
  // With 2 bits, the error of a format exceeds the noise of the measurement. The error is still so small that
  // the divergence grows in proportion to the error.
  constexpr double kProbeBits = 2;
  const Ladder ladder = sorted_ladder(recipe, head_dim);
  KVANT_CHECK(!ladder.formats.empty(), "a probe needs a ladder");
  for (std::size_t i = 0; i < ladder.formats.size(); ++i)
    if (ladder.bits[i] >= kProbeBits) return *ladder.formats[i];
  return *ladder.formats.back();
}

bool knows_sensitivities(const Recipe& recipe, const Geometry& geometry, const Constants* constants) {
  if (constants == nullptr) return false;
  const std::string name = sensitivity_constant(recipe);
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    for (int head = 0; head < geometry.kv_heads(layer); ++head) {
      for (const Side side : kSides) {
        if (is_overridden(recipe, layer, head, side)) continue;
        if (!constants->find(layer, head, side, name).empty()) return true;
      }
    }
  }
  return false;
}

Result<Recipe> allocate_bits(const Recipe& recipe, const Geometry& geometry, const Constants* constants) {
  if (recipe.budget == 0) return recipe;
  const std::vector<Ladder> ladders = sorted_ladders(recipe, geometry);
  if (!knows_sensitivities(recipe, geometry, constants)) return allocate_evenly(recipe, ladders);
  auto units = units_of(recipe, geometry, constants, ladders);
  if (!units.ok()) return units.error();
  double spare = 0;
  for (const Ladder& ladder : ladders) {
    const auto is_its = [&](const Unit& unit) { return unit.ladder == &ladder; };
    const auto n = static_cast<double>(std::count_if(units->begin(), units->end(), is_its));
    spare += (recipe.budget - ladder.bits.front()) * n * ladder.head_dim / geometry.head_dim;
  }
  if (spare < 0) return too_small(recipe, ladders.front());
  raise_levels(*units, spare);
  Recipe allocated = recipe;
  for (const Unit& unit : *units) {
    const SideRecipe& usual = unit.side == Side::key ? recipe.k : recipe.v;
    allocated.overrides.push_back({unit.side,
                                   unit.layer,
                                   unit.layer,
                                   unit.kv_head,
                                   {usual.transforms, unit.ladder->formats[unit.level]->name()}});
  }
  return allocated;
}

}  // namespace kvant
