#include "calibrate/needs.h"

#include <algorithm>

#include "base/check.h"
#include "recipe/plan.h"

namespace kvant {
namespace {

std::string joined(const std::vector<std::string>& names) {
  return names.empty() ? "" : transform_constant_name(names, names.size() - 1);
}

std::string stored_name(const ConstantNeed& need, bool without_sink) {
  const std::string sink = without_sink ? "" : "nosink/";
  // The name includes the earlier transforms, on which the values depend.
  if (need.kind == NeedKind::transform) return sink + need.name;
  const std::string source = need.kind == NeedKind::sampled_metric ? "sampled/" : "";
  return source + sink + joined(need.after) + ":" + need.name;
}

HeadNeeds needs_of_side(const Recipe& recipe, const Geometry& geometry, int layer, int kv_head, Side side) {
  const SideRecipe& usual = side_of(recipe, side, layer, kv_head);
  HeadNeeds needs{layer, kv_head, side, recipe.sink > 0, usual.transforms, {}};
  for (ConstantNeed& need : constant_needs(recipe, geometry, layer, kv_head, side)) {
    ScopedNeed scoped{std::move(need), "", nullptr, Correction::none};
    scoped.stored = stored_name(scoped.need, needs.without_sink);
    if (scoped.need.kind == NeedKind::adapter) {
      scoped.corrected = find_format(usual.format);
      scoped.correction = recipe.correction;
      scoped.stored +=
          "/" + usual.format + (recipe.correction == Correction::absolute ? "/absolute" : "/relative");
    }
    needs.constants.push_back(std::move(scoped));
  }
  return needs;
}

bool same_values(const HeadNeeds& a, const HeadNeeds& b) {
  return a.side == b.side && a.without_sink == b.without_sink && a.transforms == b.transforms;
}

// Adds needs to the earlier needs of a head. Needs that are learned from the same values are merged.
void merge(std::vector<HeadNeeds>& of_head, HeadNeeds needs) {
  if (needs.constants.empty()) return;
  const auto same =
      std::find_if(of_head.begin(), of_head.end(), [&](const HeadNeeds& n) { return same_values(n, needs); });
  if (same == of_head.end()) {
    of_head.push_back(std::move(needs));
    return;
  }
  for (ScopedNeed& constant : needs.constants) {
    const bool known = std::any_of(same->constants.begin(), same->constants.end(),
                                   [&](const ScopedNeed& c) { return c.stored == constant.stored; });
    if (!known) same->constants.push_back(std::move(constant));
  }
}

}  // namespace

std::vector<HeadNeeds> needs_of(std::span<const Recipe> recipes, const Geometry& geometry) {
  std::vector<HeadNeeds> all;
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    for (int kv_head = 0; kv_head < geometry.kv_heads(layer); ++kv_head) {
      std::vector<HeadNeeds> of_head;
      for (const Side side : kSides) {
        for (const Recipe& recipe : recipes)
          merge(of_head, needs_of_side(recipe, geometry, layer, kv_head, side));
      }
      std::move(of_head.begin(), of_head.end(), std::back_inserter(all));
    }
  }
  return all;
}

std::string stored_sensitivity(const Recipe& recipe, const Geometry& geometry, int layer, int kv_head,
                               Side side) {
  for (const ScopedNeed& constant : needs_of_side(recipe, geometry, layer, kv_head, side).constants)
    if (constant.need.kind == NeedKind::sensitivity) return constant.stored;
  KVANT_CHECK(false, "sensitivities of a recipe without a budget");
}

bool needs_calibration(const Recipe& recipe, const Geometry& geometry) {
  return !needs_of({&recipe, 1}, geometry).empty();
}

bool requires_calibration(const Recipe& recipe, const Geometry& geometry) {
  for (const HeadNeeds& head : needs_of({&recipe, 1}, geometry)) {
    for (const ScopedNeed& constant : head.constants)
      if (!is_optional(constant.need.kind)) return true;
  }
  return false;
}

Result<Constants> constants_for(const Recipe& recipe, const Geometry& geometry, const Constants& stored) {
  Constants constants;
  for (const HeadNeeds& head : needs_of({&recipe, 1}, geometry)) {
    for (const ScopedNeed& constant : head.constants) {
      const auto values = stored.find(head.layer, head.kv_head, head.side, constant.stored);
      const bool off = constant.need.kind == NeedKind::adapter && switched_off(values);
      if (values.size() != constant.need.size && !off) {
        return error("no constants '{}' of layer {} KV head {} {} for the recipe {}", constant.stored,
                     head.layer, head.kv_head, side_name(head.side), label(recipe));
      }
      constants.set(head.layer, head.kv_head, head.side, constant.need.name, {values.begin(), values.end()});
    }
  }
  return constants;
}

}  // namespace kvant
