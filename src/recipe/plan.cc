#include "recipe/plan.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "format/code_order.h"
#include "recipe/bit_allocation.h"
#include "recipe/constant_needs.h"
#include "recipe/head_mix.h"
#include "recipe/message_text.h"
#include "recipe/uncalibrated_recipe.h"
#include "transform/calibrated_constants.h"

namespace kvant {
namespace {

Status check_geometry(const Geometry& geometry) {
  KVANT_CHECK(geometry.sliding_window.size() == static_cast<std::size_t>(geometry.n_layers),
              "a geometry states the sliding window of every layer");
  KVANT_CHECK(
      !geometry.heads_differ() || geometry.layer_heads.size() == static_cast<std::size_t>(geometry.n_layers),
      "a geometry states the heads of every layer, or of none");
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    const int d = geometry.dim(layer);
    if (d > 0 && d % 8 == 0 && d <= kMaxHeadDim) continue;
    return error("{} has a head size of {}: multiples of 8 up to {} are supported", geometry.model, d,
                 kMaxHeadDim);
  }
  return {};
}

Status check_override(const SideOverride& override, const Geometry& geometry) {
  const char side = override.side == Side::key ? 'k' : 'v';
  const bool at_edges = override.first_layer < 0;
  if (at_edges && -override.first_layer > geometry.n_layers) {
    return error("an override {}@edge{} names {} layers at each end, but {} has {}", side,
                 -override.first_layer, -override.first_layer, geometry.model, geometry.n_layers);
  }
  if (!at_edges && override.last_layer >= geometry.n_layers) {
    return error("an override {}@... names layer {}, but {} has layers 0 to {}", side, override.last_layer,
                 geometry.model, geometry.n_layers - 1);
  }
  const int last = std::min(override.last_layer, geometry.n_layers - 1);
  for (int layer = std::max(0, override.first_layer); layer <= last; ++layer) {
    if (override.kv_head < geometry.kv_heads(layer)) continue;
    return error("an override {}@... names KV head {}, but {} has KV heads 0 to {}{}", side, override.kv_head,
                 geometry.model, geometry.kv_heads(layer) - 1,
                 geometry.heads_differ() ? fmt::format(" in layer {}", layer) : "");
  }
  return {};
}

Status check_mix(const Recipe& recipe) {
  if (recipe.mix == 0 || !recipe.mix_k.empty() || !recipe.mix_v.empty()) return {};
  return error("mix={} gives some heads other formats, but neither mix_k nor mix_v is set: set one of them",
               recipe.mix);
}

Status check_budget(const Recipe& recipe) {
  if (recipe.budget == 0 && recipe.ladder.empty()) return {};
  if (recipe.ladder.empty()) {
    return error("budget={} needs formats to choose from: set ladder, as in ladder=tcq2+tcq3+tcq4",
                 recipe.budget);
  }
  if (recipe.budget == 0)
    return error("ladder needs a number of bits to allocate: set budget, as in budget=3.5");
  if (recipe.encode == Encode::sampled) {
    return error(
        "encode=sampled is for recipes without a budget: set encode=shaped, or name such a recipe, as in "
        "uniform-4bit,encode=sampled");
  }
  if (recipe.mix == 0) return {};
  return error("budget and mix both choose the formats of heads: set budget=0, or mix=0");
}

Status check_eviction(const Recipe& recipe, const Geometry& geometry) {
  if (recipe.evict == 0) return {};
  if (recipe.correction != Correction::none) {
    return error(
        "evict={} drops tokens that the correction cannot remove from its sums: set correction=none, or "
        "evict=0",
        recipe.evict);
  }
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    if (!geometry.slides(layer)) return {};
  }
  return error("evict={} has no effect, because every layer of {} has a sliding window: leave it out",
               recipe.evict, geometry.model);
}

// Integer products read INT8 pages without any further rounding. VQuant's prompt attention rounds only tokens
// that precede the query's page by more than a window. A short block has no such tokens.
Status check_prompt(const Recipe& recipe) {
  if (recipe.prompt == PromptAttention::exact) return {};
  if (recipe.products == Products::integer) {
    return error(
        "products=integer already computes the attention of prompts in integers: leave out prompt, or set "
        "products=real");
  }
  if (recipe.prompt == PromptAttention::flashq && recipe.softmax == Softmax::sas_paper) {
    return error(
        "prompt=flashq supports softmax=exact and softmax=sas only: set one of them, or prompt=exact");
  }
  const bool rounds_near = recipe.prompt == PromptAttention::sage ||
                           recipe.prompt == PromptAttention::flashq || recipe.window == 0;
  const bool reaches_far = recipe.prefill == kPrefillAll || recipe.prefill >= recipe.window + 2 * kPageTokens;
  if (rounds_near || reaches_far) return {};
  return error(
      "prompt={} has no effect: blocks of {} tokens end within the window of {} tokens and the page of the "
      "queries; set prefill=all, or a smaller window",
      recipe.prompt == PromptAttention::int8 ? "int8" : "int4", recipe.prefill, recipe.window);
}

// Protection, eviction and the correction depend on the queries of one layer. Layers that share a cache have
// different queries.
Status check_shared_layers(const Recipe& recipe, const Geometry& geometry) {
  const bool shares =
      std::find(geometry.shared.begin(), geometry.shared.end(), true) != geometry.shared.end();
  if (!shares || (recipe.protect == 0 && recipe.evict == 0 && recipe.correction == Correction::none))
    return {};
  return error(
      "protect, evict and correction need a cache for each layer, but layers of {} share one: set protect=0, "
      "evict=0 and correction=none",
      geometry.model);
}

bool shifts_keys(const Recipe& recipe, const Geometry& geometry, int layer) {
  for (int kv_head = 0; kv_head < geometry.kv_heads(layer); ++kv_head) {
    for (const std::string& name : side_of(recipe, Side::key, layer, kv_head).transforms) {
      if (find_transform_kind(name)->shifts) return true;
    }
  }
  return false;
}

// The absolute correction adds a term to exp(score), so a transform of K must not shift the scores. A shift
// of all scores would change exp(score) but not the term.
Status check_absolute_scores(const Recipe& recipe, const Geometry& geometry) {
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    if (!corrects(recipe, geometry, layer) || !shifts_keys(recipe, geometry, layer)) continue;
    return error(
        "correction=absolute needs unshifted scores, but K of layer {} has a transform that shifts them: "
        "leave it out, or set correction=relative",
        layer);
  }
  return {};
}

Status check_correction(const Recipe& recipe, const Geometry& geometry) {
  const LayerRange& layers = recipe.correction_layers;
  if (recipe.correction == Correction::none && layers != LayerRange{}) {
    return error(
        "correction_layers needs a correction: set correction to absolute or relative, or leave out "
        "correction_layers");
  }
  if (recipe.correction != Correction::none && !geometry.sink_logits.empty()) {
    return error("the correction does not support sink logits, which heads of {} have: set correction=none",
                 geometry.model);
  }
  const int highest = std::max(layers.first, layers.last);
  if (highest >= geometry.n_layers) {
    return error("correction_layers names layer {}, but {} has layers 0 to {}", highest, geometry.model,
                 geometry.n_layers - 1);
  }
  if (recipe.correction == Correction::absolute) return check_absolute_scores(recipe, geometry);
  return {};
}

// Returns an error if a required constant is missing. Sets plan.calibration.
Status check_constants(Plan& plan, const HeadConstants& constants) {
  for (const ConstantNeed& need :
       constant_needs(plan.recipe, plan.geometry, constants.layer, constants.kv_head, constants.side)) {
    if (plan.calibration == CalibrationState::not_needed) plan.calibration = CalibrationState::calibrated;
    if (need.kind == NeedKind::adapter && switched_off(constants.find(need.name))) continue;
    const auto found = calibrated_constants(constants, need.name, need.size);
    if (!found.ok()) return found.error();
  }
  return {};
}

Result<SidePlan> resolve_side(const SideRecipe& recipe, int head_dim, const HeadConstants& constants,
                              PageOrder order) {
  SidePlan plan;
  plan.sealed = find_format(recipe.format);
  if (head_dim < plan.sealed->least_head_dim()) {
    return error(
        "the format {} needs heads of at least {} channels, and layer {} has heads of {}: choose another "
        "format for it",
        recipe.format, plan.sealed->least_head_dim(), constants.layer, head_dim);
  }
  auto transform = Transform::make(recipe.transforms, head_dim, constants);
  if (!transform.ok()) return transform.error();
  plan.transform_names = recipe.transforms;
  plan.transform = std::move(transform).value();
  plan.context = PageContext{head_dim, constants};
  if (order == PageOrder::canonical) return plan;
  plan.ordered = with_code_order(*plan.sealed, constants.side, head_dim);
  if (plan.ordered != nullptr) plan.sealed = plan.ordered.get();
  if (plan.sealed->code_scheme(head_dim)) plan.context.table = plan.sealed->code_table(plan.context);
  return plan;
}

bool corrects_nothing(const HeadConstants& keys) {
  return switched_off(keys.find(kQueryAdapter)) || switched_off(keys.find(kKeyAdapter));
}

// Resolves the plan of one head. `allocated` is the plan's recipe after the bit allocation.
Result<HeadPlan> resolve_head(Plan& plan, const Recipe& allocated, int layer, int kv_head, bool mixed) {
  HeadPlan head;
  for (Side side : kSides) {
    const HeadConstants constants{plan.constants.get(), layer, kv_head, side};
    KVANT_RETURN_IF_ERROR(check_constants(plan, constants));
    auto resolved = resolve_side(mixed_side_of(allocated, side, layer, kv_head, mixed),
                                 plan.geometry.dim(layer), constants, plan.order);
    if (!resolved.ok()) return resolved.error();
    (side == Side::key ? head.k : head.v) = std::move(resolved).value();
  }
  head.corrected = corrects(plan.recipe, plan.geometry, layer) && !corrects_nothing(head.k.context.constants);
  return head;
}

// Replaces the edges that overrides name by layers of the model. The order of overrides stays.
Recipe with_layers_of_edges(Recipe recipe, int n_layers) {
  std::vector<SideOverride> overrides;
  for (const SideOverride& override : recipe.overrides) {
    overrides.push_back(override);
    if (override.first_layer >= 0) continue;
    const int n = std::min(-override.first_layer, n_layers);
    overrides.back().first_layer = 0;
    overrides.back().last_layer = n - 1;
    overrides.push_back(overrides.back());
    overrides.back().first_layer = n_layers - n;
    overrides.back().last_layer = n_layers - 1;
  }
  recipe.overrides = std::move(overrides);
  return recipe;
}

Status resolve_heads(Plan& plan) {
  const auto allocated = allocate_bits(with_layers_of_edges(plan.recipe, plan.geometry.n_layers),
                                       plan.geometry, plan.constants.get());
  if (!allocated.ok()) return allocated.error();
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer) {
    const auto mixed = mixed_heads(plan.recipe, plan.geometry, plan.constants.get(), layer);
    if (!mixed.ok()) return mixed.error();
    for (int kv_head = 0; kv_head < plan.geometry.kv_heads(layer); ++kv_head) {
      auto head = resolve_head(plan, *allocated, layer, kv_head, (*mixed)[kv_head]);
      if (!head.ok()) return head.error();
      plan.heads.push_back(std::move(head).value());
    }
  }
  return {};
}

// A sliding window forgets its first tokens. In a layer with a sliding window, a sink and tokens that older
// queries have protected would only take memory.
LayerPlan resolve_layer(const Plan& plan, int layer) {
  LayerPlan resolved;
  resolved.sliding_window = plan.geometry.sliding_window[layer];
  resolved.sink = plan.geometry.slides(layer) ? 0 : plan.recipe.sink;
  resolved.protect = plan.geometry.slides(layer) ? 0 : plan.recipe.protect;
  resolved.evict = plan.geometry.slides(layer) ? 0 : plan.recipe.evict;
  resolved.window = plan.recipe.window;
  resolved.needs_offset = plan.geometry.score_softcap > 0 && shifts_keys(plan.recipe, plan.geometry, layer);
  return resolved;
}

std::vector<std::string> integral_formats(bool row_wise) {
  std::vector<std::string> names = format_names();
  std::erase_if(names, [row_wise](const std::string& name) {
    return !find_format(name)->integral() || find_format(name)->row_wise() != row_wise;
  });
  return names;
}

Status check_integers(const Plan& plan) {
  if (!plan.tail->integral()) {
    return error("products=integer needs unsealed tokens in integers, not {}: set tail to one of {}",
                 plan.tail->name(), listed(integral_formats(true)));
  }
  for (const HeadPlan& head : plan.heads) {
    for (Side side : kSides) {
      const SidePlan& stored = head.side(side);
      if (stored.sealed->integral()) continue;
      const HeadConstants& where = stored.context.constants;
      return error("products=integer needs integer formats, but layer {} KV head {} {} is {}: use one of {}",
                   where.layer, where.kv_head, side_name(side), stored.sealed->name(),
                   listed(integral_formats(false)));
    }
  }
  return {};
}

// Replaces a recipe without calibration by its uncalibrated recipe.
Status replace_uncalibrated(Plan& plan) {
  if (!lacks_optional_constants(plan.recipe, plan.geometry, plan.constants.get())) return {};
  auto served = uncalibrated_recipe(plan.recipe, plan.geometry);
  if (!served.ok()) return served.error();
  plan.recipe = std::move(served).value();
  plan.calibration = CalibrationState::missing;
  return {};
}

Status resolve_into(Plan& plan) {
  KVANT_RETURN_IF_ERROR(check_recipe(plan.recipe, plan.geometry));
  KVANT_RETURN_IF_ERROR(replace_uncalibrated(plan));
  plan.name = label(plan.recipe);
  KVANT_RETURN_IF_ERROR(resolve_heads(plan));
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer)
    plan.layers.push_back(resolve_layer(plan, layer));
  plan.tail = plan.recipe.tail.empty() ? usual_tail(plan) : find_format(plan.recipe.tail);
  if (plan.recipe.products == Products::integer) KVANT_RETURN_IF_ERROR(check_integers(plan));
  return {};
}

}  // namespace

const Format* usual_tail(const Plan& plan) {
  const Format* first = plan.heads.empty() ? nullptr : plan.heads[0].k.sealed;
  const bool uniform = std::all_of(plan.heads.begin(), plan.heads.end(), [first](const HeadPlan& head) {
    return head.k.sealed == first && head.v.sealed == first;
  });
  return first != nullptr && uniform && first->plain() ? first : find_format("bf16");
}

const SideRecipe& side_of(const Recipe& recipe, Side side, int layer, int kv_head) {
  const SideRecipe* found = side == Side::key ? &recipe.k : &recipe.v;
  for (const SideOverride& o : recipe.overrides) {
    const bool in_layers = o.first_layer <= layer && layer <= o.last_layer;
    if (o.side == side && in_layers && (o.kv_head < 0 || o.kv_head == kv_head)) found = &o.recipe;
  }
  return *found;
}

const char* calibration_state_name(CalibrationState state) {
  switch (state) {
    case CalibrationState::not_needed:
      return "not needed";
    case CalibrationState::calibrated:
      return "calibrated";
    case CalibrationState::missing:
      break;
  }
  return "not calibrated";
}

// Recipes that a program builds field by field get the parser's checks here, because the function prints and
// parses the recipe.
Status check_recipe(const Recipe& recipe, const Geometry& geometry) {
  KVANT_RETURN_IF_ERROR(check_geometry(geometry));
  const auto parsed = parse_recipe(to_string(recipe));
  if (!parsed.ok()) return parsed.error();
  KVANT_RETURN_IF_ERROR(check_mix(recipe));
  KVANT_RETURN_IF_ERROR(check_budget(recipe));
  KVANT_RETURN_IF_ERROR(check_eviction(recipe, geometry));
  KVANT_RETURN_IF_ERROR(check_prompt(recipe));
  KVANT_RETURN_IF_ERROR(check_shared_layers(recipe, geometry));
  for (const SideOverride& override : recipe.overrides) {
    KVANT_RETURN_IF_ERROR(check_override(override, geometry));
  }
  return check_correction(recipe, geometry);
}

Result<std::shared_ptr<const Plan>> resolve(const Recipe& recipe, const Geometry& geometry,
                                            std::shared_ptr<const Constants> constants, PageOrder order) {
  auto plan = std::make_shared<Plan>();
  plan->order = order;
  plan->asked = plan->recipe = recipe;
  plan->geometry = geometry;
  plan->constants = std::move(constants);
  if (const Status resolved = resolve_into(*plan); !resolved.ok()) {
    return error("recipe {}: {}", label(recipe), resolved.error().message);
  }
  return std::shared_ptr<const Plan>(std::move(plan));
}

}  // namespace kvant
