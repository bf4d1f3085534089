#include "recipe/plan.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvant {
namespace {

constexpr int kLargestHeadDim = 256;

Status check_geometry(const Geometry& geometry) {
  KVANT_CHECK(geometry.sliding_window.size() == static_cast<std::size_t>(geometry.n_layers),
              "a geometry states the sliding window of every layer");
  if (geometry.head_dim <= 0 || geometry.head_dim % 8 != 0 || geometry.head_dim > kLargestHeadDim) {
    return error("{} has a head size of {}: multiples of 8 up to {} are supported", geometry.model,
                 geometry.head_dim, kLargestHeadDim);
  }
  return {};
}

Status check_override(const SideOverride& override, const Geometry& geometry) {
  const char side = override.side == Side::key ? 'k' : 'v';
  if (override.last_layer >= geometry.n_layers) {
    return error("an override {}@... names layer {}, but {} has layers 0 to {}", side, override.last_layer,
                 geometry.model, geometry.n_layers - 1);
  }
  if (override.kv_head >= geometry.n_kv_heads) {
    return error("an override {}@... names KV head {}, but {} has KV heads 0 to {}", side, override.kv_head,
                 geometry.model, geometry.n_kv_heads - 1);
  }
  return {};
}

// Recipes made by hand get the checks of parsed ones by being printed and parsed.
Status check_recipe(const Recipe& recipe, const Geometry& geometry) {
  const auto parsed = parse_recipe(to_string(recipe));
  if (!parsed.ok()) return parsed.error();
  for (const SideOverride& override : recipe.overrides) {
    KVANT_RETURN_IF_ERROR(check_override(override, geometry));
  }
  return {};
}

Result<SidePlan> resolve_side(const SideRecipe& recipe, int head_dim, const HeadConstants& constants) {
  SidePlan plan;
  plan.sealed = find_format(recipe.format);
  for (const std::string& name : plan.sealed->needed_constants()) {
    if (!constants.find(name).empty()) continue;
    return error(
        "layer {} KV head {} {} has no calibrated constants '{}' for the format {}: run `kvant calibrate` "
        "with "
        "this model and recipe first",
        constants.layer, constants.kv_head, side_name(constants.side), name, recipe.format);
  }
  auto transform = Transform::make(recipe.transforms, head_dim, constants);
  if (!transform.ok()) return transform.error();
  plan.transform_names = recipe.transforms;
  plan.transform = std::move(transform).value();
  plan.context = PageContext{head_dim, constants};
  return plan;
}

Status resolve_heads(Plan& plan) {
  const Geometry& geometry = plan.geometry;
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    for (int kv_head = 0; kv_head < geometry.n_kv_heads; ++kv_head) {
      HeadPlan head;
      for (Side side : kSides) {
        auto resolved = resolve_side(side_of(plan.recipe, side, layer, kv_head), geometry.head_dim,
                                     HeadConstants{plan.constants.get(), layer, kv_head, side});
        if (!resolved.ok()) return resolved.error();
        (side == Side::key ? head.k : head.v) = std::move(resolved).value();
      }
      plan.heads.push_back(std::move(head));
    }
  }
  return {};
}

bool shifts_keys(const Plan& plan, int layer) {
  for (int kv_head = 0; kv_head < plan.geometry.n_kv_heads; ++kv_head) {
    for (const std::string& name : plan.head(layer, kv_head).k.transform_names) {
      if (find_transform_kind(name)->shifts) return true;
    }
  }
  return false;
}

// A sliding window forgets its first tokens, so that a sink would be dead weight there.
LayerPlan resolve_layer(const Plan& plan, int layer) {
  LayerPlan resolved;
  resolved.sliding_window = plan.geometry.sliding_window[layer];
  resolved.sink = plan.geometry.slides(layer) ? 0 : plan.recipe.sink;
  resolved.window = plan.recipe.window;
  resolved.needs_offset = plan.geometry.score_softcap > 0 && shifts_keys(plan, layer);
  return resolved;
}

// A cache of nothing but one plain format keeps its unsealed tokens in it too, so that f16 is f16 throughout.
const Format* tail_format(const Plan& plan) {
  const Format* first = plan.heads.empty() ? nullptr : plan.heads[0].k.sealed;
  const bool uniform = std::all_of(plan.heads.begin(), plan.heads.end(), [first](const HeadPlan& head) {
    return head.k.sealed == first && head.v.sealed == first;
  });
  return first != nullptr && uniform && first->plain() ? first : find_format("bf16");
}

Status resolve_into(Plan& plan) {
  KVANT_RETURN_IF_ERROR(check_geometry(plan.geometry));
  KVANT_RETURN_IF_ERROR(check_recipe(plan.recipe, plan.geometry));
  KVANT_RETURN_IF_ERROR(resolve_heads(plan));
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer)
    plan.layers.push_back(resolve_layer(plan, layer));
  plan.tail = tail_format(plan);
  return {};
}

}  // namespace

const SideRecipe& side_of(const Recipe& recipe, Side side, int layer, int kv_head) {
  const SideRecipe* found = side == Side::key ? &recipe.k : &recipe.v;
  for (const SideOverride& o : recipe.overrides) {
    const bool in_layers = o.first_layer <= layer && layer <= o.last_layer;
    if (o.side == side && in_layers && (o.kv_head < 0 || o.kv_head == kv_head)) found = &o.recipe;
  }
  return *found;
}

Result<std::shared_ptr<const Plan>> resolve(const Recipe& recipe, const Geometry& geometry,
                                            std::shared_ptr<const Constants> constants) {
  auto plan = std::make_shared<Plan>();
  plan->recipe = recipe;
  plan->geometry = geometry;
  plan->constants = std::move(constants);
  if (const Status resolved = resolve_into(*plan); !resolved.ok()) {
    return error("recipe {}: {}", label(recipe), resolved.error().message);
  }
  return std::shared_ptr<const Plan>(std::move(plan));
}

}  // namespace kvant
