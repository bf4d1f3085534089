#include "cache/device_support.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/device_layout.h"
#include "cache/protected_tokens.h"

namespace kvant {
namespace {

// Returns what the cache and its attention lack on every device, as a clause. The clause is empty if nothing
// is lacking.
std::string lacking_everywhere(const Plan& plan) {
  const Recipe& recipe = plan.recipe;
  const bool corrects = recipe.correction != Correction::none;
  if (recipe.protect > 0 && is_unquantized(plan))
    return "tokens that are never quantized can't be protected by scores";
  if (recipe.protect > 0 && corrects) return "there is no protection by scores with a correction";
  if (recipe.protect > 0 && plan.geometry.heads_differ())
    return "there is no protection by scores where heads differ between layers";
  if (corrects && is_corrected(plan) && plan.geometry.heads_differ())
    return "there is no correction where heads differ between layers";
  if (recipe.prompt != PromptAttention::exact && recipe.prompt != PromptAttention::flashq)
    return "there is no rounded attention within a prompt except prompt=flashq";
  if (recipe.softmax == Softmax::sas_paper) return "there is no softmax=sas-paper";
  if (recipe.softmax != Softmax::exact && !plan.geometry.sink_logits.empty())
    return "there is no softmax=sas for models with sink logits";
  if (std::ranges::any_of(plan.layers, &LayerPlan::needs_offset))
    return "there are no transforms that shift keys for models with soft-capped scores";
  return "";
}

std::uint32_t features_of(const Plan& plan, int layer) {
  std::uint32_t features =
      plan.recipe.prompt == PromptAttention::flashq ? KVANT_INTEGER_PROMPTS : KVANT_HALF_PROMPTS;
  if (!is_unquantized(plan)) features |= KVANT_SEALING;
  if (protects_by_score(plan, layer)) features |= KVANT_PROTECTION;
  if (plan.layers[layer].evict > 0) features |= KVANT_EVICTION;
  if (is_corrected(plan, layer)) features |= KVANT_CORRECTION;
  if (plan.geometry.slides(layer)) features |= KVANT_SLIDING_WINDOW;
  if (!plan.geometry.sink_logits.empty()) features |= KVANT_SINK_LOGITS;
  return features;
}

// Returns what the library lacks, as a clause. The clause is empty if nothing is lacking.
std::string lacking(const PageLibrary& library, const kvant_decode_shape& shape, std::uint32_t features) {
  const kvant_plan asked{sizeof asked, &shape, nullptr, features, 0};
  if (library.supports(&asked, nullptr) == KVANT_OK) return "";
  // The sentence begins with the name of a feature or of a call, which says nothing to a user.
  std::string_view reason = library.last_error();
  if (const std::size_t colon = reason.find(": ");
      colon != reason.npos && (reason.starts_with("KVANT_") || reason.starts_with("kvant_")))
    reason.remove_prefix(colon + 2);
  return std::string(reason);
}

// Describes a layer, for example "layer 3 with K in tcq4 and V in tok4g128, 8 KV heads of 128 channels, 4
// query heads each".
std::string layer_text(const Plan& plan, int layer) {
  const Geometry& g = plan.geometry;
  std::set<std::string> pairs;
  for (int h = 0; h < g.kv_heads(layer); ++h)
    pairs.insert(fmt::format("K in {} and V in {}", plan.head(layer, h).k.sealed->name(),
                             plan.head(layer, h).v.sealed->name()));
  const std::string formats =
      pairs.size() == 1 ? *pairs.begin() : fmt::format("{} pairs of formats", pairs.size());
  return fmt::format("layer {} with {}, {} KV heads of {} channels, {} query heads each", layer, formats,
                     g.kv_heads(layer), g.dim(layer), g.group(layer));
}

// Returns what the device lacks for the plan, as a clause that begins with the layer. The clause is empty if
// nothing is lacking.
std::string lacking(const PageDevice& device, const Plan& plan) {
  if (std::string rule = lacking_everywhere(plan); !rule.empty()) return rule;
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer) {
    const LayerShape formats = layer_shape(plan, layer);
    const std::string reason = lacking(device.library(), formats.of(1, plan), features_of(plan, layer));
    if (!reason.empty()) return fmt::format("{}: {}", layer_text(plan, layer), reason);
  }
  return "";
}

// Returns whether the library reads and writes pages of a format.
bool has_format(const PageLibrary& library, const Format& format, int head_dim) {
  kvant_decode_shape shape{};
  shape.struct_size = sizeof shape;
  shape.n_seqs = shape.n_kv_heads = shape.group = 1;
  shape.head_dim = head_dim;
  shape.softmax_scale = 1;
  shape.key_format = shape.value_format = format.name().c_str();
  return lacking(library, shape, KVANT_SEALING).empty();
}

// Returns the formats that named recipes use. Other formats would be odd advice, such as 1 bit in groups of
// 32 for a format of 2 bits.
std::set<std::string> formats_of_recipes() {
  std::set<std::string> names;
  for (const Recipe& recipe : builtin_recipes()) names.insert({recipe.k.format, recipe.v.format});
  return names;
}

// Returns the format of the library whose bits are nearest to the bits of a refused format. The result is
// null if the library has no format.
const Format* nearest_format(const PageLibrary& library, const Format& refused, int head_dim) {
  const bool learns = !refused.needed_constants().empty();
  const Format* nearest = nullptr;
  std::pair least{std::numeric_limits<double>::max(), false};
  for (const std::string& name : formats_of_recipes()) {
    const Format& format = *find_format(name);
    const bool also_learns = !format.needed_constants().empty();
    // A format that needs no constants is not replaced by one that needs some.
    if (also_learns && !learns) continue;
    if (format.least_head_dim() > head_dim || !has_format(library, format, head_dim)) continue;
    const std::pair far{std::abs(format.bits(head_dim) - refused.bits(head_dim)), also_learns != learns};
    if (far >= least) continue;
    nearest = &format;
    least = far;
  }
  return nearest;
}

// A Change makes a plan that a device may rather serve.
struct Change {
  std::string text;  // an imperative, for example "use protect=0"
  std::function<void(Plan&)> apply;
};

void for_each_side(Plan& plan, const std::function<void(SidePlan&, int head_dim)>& change) {
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer) {
    for (int h = 0; h < plan.geometry.kv_heads(layer); ++h) {
      HeadPlan& head = plan.heads[plan.geometry.head_index(layer, h)];
      for (SidePlan* side : {&head.k, &head.v}) change(*side, plan.geometry.dim(layer));
    }
  }
}

// Returns a change that replaces each format that the library lacks by the nearest one that it has.
Change to_nearest_formats(const Plan& plan, const PageLibrary& library) {
  std::map<std::pair<const Format*, int>, const Format*> instead;
  std::set<std::string> texts;
  const bool is_plain = std::ranges::all_of(
      plan.heads, [](const HeadPlan& head) { return head.k.sealed->plain() && head.v.sealed->plain(); });
  Plan known = plan;
  for_each_side(known, [&](SidePlan& side, int d) {
    const auto [at, is_new] = instead.try_emplace({side.sealed, d}, side.sealed);
    // Unquantized sides stay unquantized: both become bf16 instead.
    if (!is_new || is_plain || has_format(library, *side.sealed, d)) return;
    if (const Format* nearest = nearest_format(library, *side.sealed, d)) {
      at->second = nearest;
      texts.insert(fmt::format("{} instead of {}", nearest->name(), side.sealed->name()));
    }
  });
  return {
      fmt::format("use {}", fmt::join(texts, " and ")), [instead](Plan& changed) {
        for_each_side(changed, [&](SidePlan& side, int d) { side.sealed = instead.at({side.sealed, d}); });
      }};
}

// Lists changes, the gentlest first.
std::vector<Change> changes_of(const Plan& plan, const PageLibrary& library) {
  return {
      {"use prompt=exact", [](Plan& p) { p.recipe.prompt = PromptAttention::exact; }},
      {"use softmax=sas",
       [](Plan& p) {
         if (p.recipe.softmax == Softmax::sas_paper) p.recipe.softmax = Softmax::sas;
       }},
      {"use softmax=exact", [](Plan& p) { p.recipe.softmax = Softmax::exact; }},
      {"leave the eviction out with evict=0",
       [](Plan& p) {
         for (LayerPlan& layer : p.layers) layer.evict = 0;
       }},
      {"leave the protection out with protect=0",
       [](Plan& p) {
         p.recipe.protect = 0;
         for (LayerPlan& layer : p.layers) layer.protect = 0;
       }},
      {"leave the correction out with correction=none",
       [](Plan& p) {
         p.recipe.correction = Correction::none;
         for (HeadPlan& head : p.heads) head.corrected = false;
       }},
      to_nearest_formats(plan, library),
      {"give all KV heads of a layer the same formats, as a smaller ladder does",
       [](Plan& p) {
         for (int layer = 0; layer < p.geometry.n_layers; ++layer) {
           const HeadPlan& first = p.head(layer, 0);
           for (int h = 1; h < p.geometry.kv_heads(layer); ++h) {
             HeadPlan& head = p.heads[p.geometry.head_index(layer, h)];
             head.k.sealed = first.k.sealed;
             head.v.sealed = first.v.sealed;
           }
         }
       }},
      {"use bf16 on both sides",
       [](Plan& p) { for_each_side(p, [](SidePlan& side, int) { side.sealed = find_format("bf16"); }); }},
  };
}

// Returns the fewest changes with which the device serves the plan, as imperatives. The text is empty if
// even all changes of the list are not enough.
std::string nearest_plan(const PageDevice& device, const Plan& plan) {
  std::vector<Change> changes = changes_of(plan, device.library());
  const auto is_served = [&](const std::vector<Change>& with) {
    Plan changed = plan;
    for (const Change& change : with) change.apply(changed);
    return serves(device, changed);
  };
  if (!is_served(changes)) return "";
  for (std::size_t i = changes.size(); i-- > 0;) {
    std::vector<Change> fewer = changes;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    if (is_served(fewer)) changes = std::move(fewer);
  }
  std::vector<std::string> texts;
  for (const Change& change : changes) texts.push_back(change.text);
  return fmt::format("{}", fmt::join(texts, " and "));
}

}  // namespace

bool serves(const PageDevice& device, const Plan& plan) {
  return lacking(device, plan).empty();
}

Status check_support(const Plan& plan, const PageDevice& device) {
  const std::string reason = lacking(device, plan);
  if (reason.empty()) return {};
  const std::string nearest = nearest_plan(device, plan);
  return error("recipe '{}': {} can't keep the cache of '{}': {}; {}", label(plan.recipe), device.name(),
               plan.geometry.model, reason,
               nearest.empty() ? "use --no-kv-offload, which computes attention on the CPU, or --device cpu"
                               : fmt::format("{}, or use --device cpu", nearest));
}

}  // namespace kvant
