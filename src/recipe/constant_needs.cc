#include "recipe/constant_needs.h"

#include <algorithm>

#include "format/page_metric.h"
#include "recipe/bit_allocation.h"
#include "recipe/head_mix.h"

namespace kvant {
namespace {

void add_once(std::vector<ConstantNeed>& needs, ConstantNeed need) {
  for (const ConstantNeed& known : needs) {
    if (known.name == need.name) return;
  }
  needs.push_back(std::move(need));
}

void add_transforms(std::vector<ConstantNeed>& needs, const std::vector<std::string>& names, int head_dim) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    const TransformKind* step = find_transform_kind(names[i]);
    if (!step->calibrated) continue;
    needs.push_back(ConstantNeed{NeedKind::transform,
                                 transform_constant_name(names, i),
                                 step->constant_size(head_dim),
                                 {names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i)},
                                 step,
                                 nullptr});
  }
}

void add_format(std::vector<ConstantNeed>& needs, NeedKind kind, const SideRecipe& side,
                const std::string& name, int head_dim) {
  const Format* format = find_format(name);
  for (const std::string& constant : format->needed_constants()) {
    add_once(needs, {kind, constant, format->constant_size(head_dim), side.transforms, nullptr, format});
  }
}

// Returns whether the errors are shaped for any of the formats that a head's K may get.
bool is_shaped(const Recipe& recipe, const std::vector<std::string>& formats) {
  return recipe.encode != Encode::plain &&
         std::ranges::any_of(formats, [](const std::string& f) { return find_format(f)->shapes_errors(); });
}

void add_adapters(std::vector<ConstantNeed>& needs, const SideRecipe& side, const Geometry& geometry,
                  int layer) {
  const std::size_t one = static_cast<std::size_t>(geometry.dim(layer)) * kAdapterFeatures;
  needs.push_back(
      {NeedKind::adapter, kQueryAdapter, geometry.group(layer) * one, side.transforms, nullptr, nullptr});
  needs.push_back({NeedKind::adapter, kKeyAdapter, one, side.transforms, nullptr, nullptr});
}

}  // namespace

bool corrects(const Recipe& recipe, const Geometry& geometry, int layer) {
  return recipe.correction != Correction::none && recipe.correction_layers.contains(layer) &&
         !geometry.slides(layer);
}

std::vector<ConstantNeed> constant_needs(const Recipe& recipe, const Geometry& geometry, int layer,
                                         int kv_head, Side side) {
  const int head_dim = geometry.dim(layer);
  const SideRecipe usual = mixed_side_of(recipe, side, layer, kv_head, false);
  std::vector<ConstantNeed> needs;
  add_transforms(needs, usual.transforms, head_dim);
  if (recipe.mix > 0 && side == Side::key) {
    needs.push_back({NeedKind::priority, head_priority_constant(recipe.mix_metric), 1, usual.transforms,
                     nullptr, nullptr});
  }
  add_format(needs, NeedKind::format, usual, usual.format, head_dim);
  if (recipe.mix > 0) {
    const SideRecipe mixed = mixed_side_of(recipe, side, layer, kv_head, true);
    add_format(needs, NeedKind::format, mixed, mixed.format, head_dim);
  }
  for (const std::string& format : recipe.ladder)
    add_format(needs, NeedKind::format, usual, format, head_dim);
  std::vector<std::string> formats = recipe.ladder;
  formats.push_back(usual.format);
  if (recipe.mix > 0) formats.push_back(mixed_side_of(recipe, side, layer, kv_head, true).format);
  if (side == Side::key && is_shaped(recipe, formats)) {
    needs.push_back({recipe.encode == Encode::sampled ? NeedKind::sampled_metric : NeedKind::metric,
                     kPageMetric, page_metric_size(head_dim), usual.transforms, nullptr, nullptr});
  }
  if (recipe.budget > 0) {
    needs.push_back({NeedKind::sensitivity, sensitivity_constant(recipe), recipe.ladder.size(),
                     usual.transforms, nullptr, nullptr});
  }
  if (!recipe.tail.empty()) add_format(needs, NeedKind::tail, usual, recipe.tail, head_dim);
  if (side == Side::key && corrects(recipe, geometry, layer)) add_adapters(needs, usual, geometry, layer);
  return needs;
}

}  // namespace kvant
