#include "cache/device_layout.h"

#include <algorithm>
#include <limits>

#include "base/linear_correction.h"
#include "cache/device_constants.h"
#include "cache/device_support.h"
#include "cache/layer_groups.h"
#include "cache/page_counts.h"
#include "cache/protected_tokens.h"

namespace kvant {
namespace {

// page_bytes is [heads][2].
void add_layer(EntryLayout& layout, std::vector<std::size_t> page_bytes) {
  EntryLayout::Layer layer;
  layer.offset = layout.bytes;
  for (const std::size_t bytes : page_bytes) {
    layer.page_offsets.push_back(static_cast<std::int64_t>(layout.bytes - layer.offset));
    layout.bytes += bytes;
  }
  layer.page_bytes = std::move(page_bytes);
  layout.layers.push_back(std::move(layer));
}

// Adds a layer whose heads are alike.
void add_layer(EntryLayout& layout, std::size_t key_bytes, std::size_t value_bytes, int n_heads) {
  std::vector<std::size_t> page_bytes;
  for (int head = 0; head < n_heads; ++head) page_bytes.insert(page_bytes.end(), {key_bytes, value_bytes});
  add_layer(layout, std::move(page_bytes));
}

void round_up(EntryLayout& layout) {
  layout.bytes = (layout.bytes + kDeviceUnit - 1) / kDeviceUnit * kDeviceUnit;
}

bool is_among(std::span<const int> layers, int layer) {
  return std::ranges::binary_search(layers, layer);
}

template <class Predicate>
std::vector<int> layers_where(const Plan& plan, const Predicate& predicate) {
  std::vector<int> layers;
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer) {
    if (predicate(layer)) layers.push_back(layer);
  }
  return layers;
}

bool same(const std::vector<const char*>& names) {
  return std::all_of(names.begin(), names.end(), [&](const char* name) { return name == names.front(); });
}

}  // namespace

bool is_unquantized(const Plan& plan) {
  return std::all_of(plan.heads.begin(), plan.heads.end(), [](const HeadPlan& head) {
    return head.k.sealed->name() == "bf16" && head.v.sealed->name() == "bf16";
  });
}

int device_window(const Plan& plan) {
  return is_unquantized(plan) ? std::numeric_limits<int>::max() : plan.layers.front().window;
}

int device_sink(const Plan& plan) {
  int most = 0;
  for (const LayerPlan& layer : plan.layers) most = std::max(most, layer.sink);
  return is_unquantized(plan) || protects_by_score(plan) ? 0 : most;
}

bool is_corrected(const Plan& plan, int layer) {
  for (int h = 0; h < plan.geometry.kv_heads(layer); ++h) {
    if (plan.head(layer, h).corrected) return true;
  }
  return false;
}

bool is_corrected(const Plan& plan) {
  return plan.recipe.correction != Correction::none &&
         std::any_of(plan.heads.begin(), plan.heads.end(),
                     [](const HeadPlan& head) { return head.corrected; });
}

Result<PlacedPlan> place_on(std::shared_ptr<PageDevice> device, const std::shared_ptr<const Plan>& plan) {
  KVANT_RETURN_IF_ERROR(check_support(*plan, *device));
  auto placed = std::make_shared<Plan>(*plan);
  placed->tail = find_format("bf16");
  placed->recipe.tail = "bf16";
  // The device multiplies integer codes exactly, and rounds q and P to half precision. If the
  // recipe has integer products and the device supports them, prompts attend in integers.
  placed->recipe.products = Products::real;
  if (plan->recipe.products == Products::integer && plan->recipe.prompt == PromptAttention::exact) {
    Plan in_integers = *placed;
    in_integers.recipe.prompt = PromptAttention::flashq;
    if (serves(*device, in_integers)) placed->recipe.prompt = PromptAttention::flashq;
  }
  auto constants = DeviceConstants::make(device, *placed);
  if (!constants.ok()) return constants.error();
  return PlacedPlan(std::move(placed), std::move(device), std::move(constants).value());
}

GroupRules device_rules(const Plan& plan, GroupRules rules) {
  rules.tail_step = kPageTokens;
  rules.tail_lasts = true;
  rules.seals = !is_unquantized(plan);
  return rules;
}

std::vector<const char*> head_formats(const Plan& plan, int layer, Side side) {
  std::vector<const char*> names;
  names.reserve(plan.geometry.kv_heads(layer));
  for (int h = 0; h < plan.geometry.kv_heads(layer); ++h)
    names.push_back(plan.head(layer, h).side(side).sealed->name().c_str());
  return names;
}

LayerShape layer_shape(const Plan& plan, int layer) {
  return {layer, head_formats(plan, layer, Side::key), head_formats(plan, layer, Side::value)};
}

kvant_decode_shape LayerShape::of(int n_seqs, const Plan& plan) const {
  const Geometry& g = plan.geometry;
  kvant_decode_shape shape{};
  shape.struct_size = sizeof shape;
  shape.n_seqs = n_seqs;
  shape.n_kv_heads = g.kv_heads(layer);
  shape.group = g.group(layer);
  shape.head_dim = g.dim(layer);
  shape.softmax_scale = g.softmax_scale;
  shape.key_format = keys.front();
  shape.value_format = values.front();
  if (!same(keys) || !same(values)) {
    shape.head_key_formats = keys.data();
    shape.head_value_formats = values.data();
  }
  shape.corrected = is_corrected(plan) ? 1 : 0;
  shape.sas = plan.recipe.softmax == Softmax::sas ? 1 : 0;
  shape.skip_threshold = static_cast<float>(plan.recipe.skip);
  shape.score_softcap = g.score_softcap;
  return shape;
}

EntryLayout sealed_layout(const Plan& plan, const PageLibrary& library, std::span<const int> layers) {
  // Nothing is ever sealed in an unquantized plan, so tail pages stand in.
  if (is_unquantized(plan)) return plain_layout(plan, kPageTokens, layers);
  const Geometry& g = plan.geometry;
  EntryLayout layout;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    std::vector<std::size_t> page_bytes(std::size_t{2} * g.kv_heads(layer));
    for (int i = 0; is_among(layers, layer) && i < 2 * g.kv_heads(layer); ++i) {
      const SidePlan& side = plan.head(layer, i / 2).side(kSides[i % 2]);
      page_bytes[i] = library.page_bytes(side.sealed->name().c_str(), g.dim(layer));
    }
    add_layer(layout, std::move(page_bytes));
  }
  round_up(layout);
  return layout;
}

EntryLayout plain_layout(const Plan& plan, int n_tokens, std::span<const int> layers) {
  const Geometry& g = plan.geometry;
  EntryLayout layout;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    const std::size_t page_bytes = is_among(layers, layer) ? std::size_t{2} * n_tokens * g.dim(layer) : 0;
    add_layer(layout, page_bytes, page_bytes, g.kv_heads(layer));
  }
  round_up(layout);
  return layout;
}

std::vector<int> device_protected_rows(const Plan& plan) {
  std::vector<int> rows;
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer)
    rows.push_back(protects_by_score(plan, layer) ? kPageTokens
                   : device_sink(plan) > 0        ? plan.layers[layer].sink
                                                  : 0);
  return rows;
}

EntryLayout protected_layout(const Plan& plan) {
  const std::vector<int> rows = device_protected_rows(plan);
  const int n_tiles = (std::ranges::max(rows) + kDeviceTile - 1) / kDeviceTile;
  return plain_layout(plan, std::max(n_tiles, 1) * kDeviceTile,
                      layers_where(plan, [&](int layer) { return rows[layer] > 0; }));
}

EntryLayout observer_layout(const Plan& plan) {
  const Geometry& g = plan.geometry;
  EntryLayout layout;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    const std::size_t n_rows = protects_by_score(plan, layer) ? std::size_t{kObservers} * g.n_heads : 0;
    add_layer(layout, n_rows * sizeof(float) * g.dim(layer), n_rows * sizeof(float), /*n_heads=*/1);
  }
  round_up(layout);
  return layout;
}

EntryLayout correction_layout(const Plan& plan) {
  const Geometry& g = plan.geometry;
  EntryLayout layout;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    const std::int64_t bytes = is_corrected(plan, layer) ? correction_bytes(g.dim(layer)) : 0;
    add_layer(layout, static_cast<std::size_t>(bytes), 0, g.kv_heads(layer));
  }
  round_up(layout);
  return layout;
}

namespace {

// Returns the bytes of a sequence that lie outside its pages.
std::int64_t auxiliary_bytes(const Plan& plan, int n_tokens) {
  const int n_sealed = page_counts(n_tokens, device_window(plan)).sealed;
  // A sequence has the sums of a correction. A step that seals makes a second set of sums.
  const std::int64_t sums = is_corrected(plan) ? static_cast<std::int64_t>(correction_layout(plan).bytes) : 0;
  std::int64_t bytes = sums;
  // A sequence has the observers of the open page. In a step that ends a page, a sequence also has the
  // observers of the next page.
  if (protects_by_score(plan)) bytes += 2 * static_cast<std::int64_t>(observer_layout(plan).bytes);
  if (n_sealed == 0) return bytes;
  return bytes + sums +
         static_cast<std::int64_t>(protected_layout(plan).bytes) *
             most_protected_entries(plan, device_protected_rows(plan), n_sealed);
}

// Counts the pages of a group that a batch has at most.
struct MostPages {
  std::int64_t tail = 0, sealed = 0;
};
MostPages most_pages(const GroupRules& rules, int n_tokens, const Batch& batch) {
  const std::int64_t window = rules.window, sliding = rules.sliding_window;
  if (!rules.seals) {
    // A window may begin within a page, which is then held as a whole.
    const std::int64_t held = sliding == 0 ? n_tokens : std::max(window, sliding) + kPageTokens;
    return {most_batch_pages(n_tokens, held, batch), 0};
  }
  // When a step begins, the longest tail has three parts. The first two are the window, and a page whose end
  // no token has passed. The third is all but the last token of a block, in a prompt that continues there.
  const std::int64_t tail = window + kPageTokens + std::max(rules.prefill, 1) - 1;
  MostPages most{most_batch_pages(n_tokens, tail, batch),
                 std::int64_t{batch.n_seqs} * page_counts(n_tokens, rules.window).sealed};
  // The sealed pages are the pages that the step's first token sees, and the pages that the step adds.
  if (sliding > 0)
    most.sealed =
        std::min(most.sealed, most_batch_pages(n_tokens, std::max(sliding + kPageTokens, tail), batch));
  return most;
}

}  // namespace

std::int64_t largest_device_bytes(const PlacedPlan& placed, int n_tokens, const Batch& batch) {
  const Plan& plan = *placed;
  if (n_tokens == 0) return 0;
  std::int64_t bytes = 0;
  for (const LayersOfEntry& group : layer_groups(plan)) {
    const MostPages most = most_pages(device_rules(plan, group.rules), n_tokens, batch);
    bytes += static_cast<std::int64_t>(plain_layout(plan, kPageTokens, group.layers).bytes) * most.tail;
    if (most.sealed > 0)
      bytes +=
          static_cast<std::int64_t>(sealed_layout(plan, placed.device()->library(), group.layers).bytes) *
          most.sealed;
  }
  return bytes + batch.n_seqs * auxiliary_bytes(plan, n_tokens);
}

}  // namespace kvant
