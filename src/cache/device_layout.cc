#include "cache/device_layout.h"

#include <algorithm>
#include <limits>
#include <set>

#include "cache/correction_state.h"
#include "cache/device_constants.h"
#include "cache/device_protection.h"
#include "cache/layer_groups.h"
#include "cache/page_counts.h"
#include "cache/protected_rows.h"

namespace kvant {
namespace {

constexpr int kWideDeviceHead = 256;
constexpr int kMaxDeviceGroup = 16;
constexpr int kMaxDeviceHeads = 64;
constexpr std::size_t kMaxFormatPairs = 8;  // different pairs of formats in a layer
constexpr int kMaxCorrectedHeadDim = 128;
constexpr int kMaxCorrectedGroup = 8;

Status check_geometry(const Geometry& g, const std::string& device) {
  for (int layer = 0; layer < g.n_layers; ++layer) {
    const int d = g.dim(layer), n_kv_heads = g.kv_heads(layer);
    if (d != 64 && d != 128 && d != 256 && d != 512) {
      return error(
          "{} has no kernels for heads of {} channels, which '{}' has (supported: 64, 128, 256 and 512): use "
          "--no-kv-offload, which computes attention on the CPU, or --device cpu",
          device, d, g.model);
    }
    if (g.group(layer) > kMaxDeviceGroup || n_kv_heads > kMaxDeviceHeads) {
      return error(
          "{} has no kernels for {} query heads and {} KV heads: use --no-kv-offload, which computes "
          "attention on the CPU, or --device cpu",
          device, g.n_heads, n_kv_heads);
    }
  }
  return {};
}

// Heads of 512 channels lack two features: prompts in integers, and tokens that are weighed.
bool has_wide_heads(const Geometry& g) {
  return g.head_dim > kWideDeviceHead;
}

// Kernels for prompts in integers support no caps, no sink logits and no correction.
bool takes_integer_prompts(const Plan& plan) {
  const Geometry& g = plan.geometry;
  return !has_wide_heads(g) && g.score_softcap == 0 && g.sink_logits.empty() &&
         plan.recipe.correction == Correction::none;
}

// Prompts of wide heads need more shared memory than most GPUs have.
Status check_wide_prompts(const Plan& plan, const PageDevice& device) {
  const Geometry& g = plan.geometry;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    if (g.dim(layer) <= kWideDeviceHead) continue;
    kvant_prompt_shape shape{};
    shape.struct_size = sizeof shape;
    shape.n_seqs = shape.n_queries = shape.n_tokens = 1;
    shape.n_heads = g.n_heads;
    shape.n_kv_heads = g.kv_heads(layer);
    shape.head_dim = g.dim(layer);
    shape.softmax_scale = g.softmax_scale;
    shape.causal = shape.half_products = 1;
    shape.score_softcap = g.score_softcap;
    std::size_t bytes = 0;
    if (device.library().prompt_workspace(&shape, &bytes) == KVANT_OK) continue;
    return error(
        "{} can't attend to prompts of '{}' ({}): use --no-kv-offload, which computes attention on the CPU, "
        "or --device cpu",
        device.name(), g.model, device.library().last_error());
  }
  return {};
}

// Checks what a recipe asks of scores that have a cap or sinks.
Status check_scores(const Plan& plan, const std::string& device) {
  const Geometry& g = plan.geometry;
  const Recipe& recipe = plan.recipe;
  const bool caps = g.score_softcap > 0, sinks = !g.sink_logits.empty();
  if (recipe.prompt == PromptAttention::flashq && (caps || sinks)) {
    return error(
        "recipe '{}': {} does not support prompt=flashq for models with {}, such as '{}'; use prompt=exact",
        label(recipe), device, caps ? "soft-capped scores" : "sink logits", g.model);
  }
  if (sinks && recipe.softmax != Softmax::exact) {
    return error(
        "recipe '{}': {} does not support softmax=sas for models with sink logits, such as '{}'; use "
        "softmax=exact",
        label(recipe), device, g.model);
  }
  for (int layer = 0; layer < g.n_layers; ++layer) {
    if (plan.layers[layer].needs_offset) {
      return error(
          "recipe '{}': {} does not support transforms that shift keys for models with soft-capped scores, "
          "such as '{}': use one without an offset, or --device cpu",
          label(recipe), device, g.model);
    }
    if (caps && is_corrected(plan, layer)) {
      return error(
          "recipe '{}': {} does not support the correction for models with soft-capped scores, such as '{}': "
          "leave it out with correction=none, or use --device cpu",
          label(recipe), device, g.model);
    }
  }
  return {};
}

Status check_rules(const Plan& plan, const std::string& device) {
  const Recipe& recipe = plan.recipe;
  const auto refuse = [&](const char* what, const char* instead) {
    return error("recipe '{}': {} is not supported on {}; {}, or use --device cpu", label(recipe), what,
                 device, instead);
  };
  if (recipe.protect > 0 && is_unquantized(plan))
    return refuse("protection of tokens that are never quantized", "leave it out with protect=0");
  if (recipe.protect > 0 && recipe.correction != Correction::none)
    return refuse("protection by scores with a correction",
                  "leave out one with protect=0 or correction=none");
  if (recipe.protect > 0 && has_wide_heads(plan.geometry))
    return refuse("protection by scores in heads of 512 channels", "leave it out with protect=0");
  if (recipe.protect > 0 && plan.geometry.heads_differ())
    return refuse("protection by scores in heads that differ between layers", "leave it out with protect=0");
  if (recipe.evict > 0) return refuse("eviction", "leave it out with evict=0");
  if (recipe.prompt != PromptAttention::exact && recipe.prompt != PromptAttention::flashq)
    return refuse("rounded attention within a prompt", "use prompt=exact or prompt=flashq");
  if (recipe.softmax == Softmax::sas_paper) return refuse("softmax=sas-paper", "use softmax=sas");
  return {};
}

// The library computes a correction only for keys by channel and values by token.
Status check_correction(const Plan& plan, const std::string& device) {
  if (!is_corrected(plan)) return {};
  const Geometry& g = plan.geometry;
  if (g.heads_differ()) {
    return error(
        "recipe '{}': {} supports the correction only if all layers have the same heads, unlike '{}': leave "
        "it out with correction=none, or use --device cpu",
        label(plan.recipe), device, g.model);
  }
  if (g.head_dim > kMaxCorrectedHeadDim || g.group(/*layer=*/0) > kMaxCorrectedGroup) {
    return error(
        "recipe '{}': {} supports the correction for heads of 64 and 128 channels and up to {} query heads "
        "per KV head, but '{}' has heads of {} and {}: leave it out with correction=none, or use --device "
        "cpu",
        label(plan.recipe), device, kMaxCorrectedGroup, g.model, g.head_dim, g.group(/*layer=*/0));
  }
  for (int layer = 0; layer < g.n_layers; ++layer) {
    if (!is_corrected(plan, layer)) continue;
    for (int h = 0; h < g.n_kv_heads; ++h) {
      const HeadPlan& head = plan.head(layer, h);
      const auto keys = head.k.sealed->code_scheme(g.head_dim),
                 values = head.v.sealed->code_scheme(g.head_dim);
      if (keys && keys->channel_blocks > 0 && keys->token_groups == 0 && values && values->token_groups > 0 &&
          values->channel_blocks == 0 && values->meaning == CodeMeaning::number)
        continue;
      return error(
          "recipe '{}': {} supports the correction for K in ch formats and V in tok formats, but layer {} "
          "has '{}' with '{}': leave it out with correction=none, or use --device cpu",
          label(plan.recipe), device, layer, head.k.sealed->name(), head.v.sealed->name());
    }
  }
  return {};
}

Status check_prompts(const Plan& plan, const std::string& device) {
  if (plan.recipe.prompt != PromptAttention::flashq) return {};
  if (has_wide_heads(plan.geometry)) {
    return error("recipe '{}': {} supports prompt=flashq for heads of up to 256 channels; use prompt=exact",
                 label(plan.recipe), device);
  }
  if (plan.recipe.correction == Correction::none) return {};
  return error("recipe '{}': {} does not support prompt=flashq with a correction; use prompt=exact",
               label(plan.recipe), device);
}

Status check_formats(const Plan& plan, const PageDevice& device) {
  const Geometry& g = plan.geometry;
  const PageLibrary& library = device.library();
  for (int layer = 0; layer < g.n_layers; ++layer) {
    std::set<std::pair<std::string, std::string>> pairs;
    for (int h = 0; h < g.kv_heads(layer); ++h) {
      for (const Side side : kSides) {
        const std::string& format = plan.head(layer, h).side(side).sealed->name();
        if (library.page_bytes(format.c_str(), g.dim(layer)) > 0 && library.can_seal(format.c_str()) != 0)
          continue;
        return error(
            "recipe '{}': {} has no kernel that writes '{}' pages of heads of {}; use tok, ch, prog, lm, "
            "tcq, "
            "fp8 or vq formats on both sides, as kvant-4bit has, or bf16 on both, or --device cpu",
            label(plan.recipe), device.name(), format, g.dim(layer));
      }
      pairs.emplace(plan.head(layer, h).k.sealed->name(), plan.head(layer, h).v.sealed->name());
    }
    if (pairs.size() > kMaxFormatPairs) {
      return error(
          "recipe '{}': the KV heads of layer {} have {} pairs of formats, but {} supports at most {}; use a "
          "smaller ladder, or --device cpu",
          label(plan.recipe), layer, pairs.size(), device.name(), kMaxFormatPairs);
    }
    const LayerShape formats = layer_shape(plan, layer);
    const kvant_decode_shape shape = formats.of(1, plan);
    if (library.decode_kernel(&shape) == nullptr) {
      return error("recipe '{}': {} has no kernel for layer {}, '{}' with '{}' ({}): use --device cpu",
                   label(plan.recipe), device.name(), layer, pairs.begin()->first, pairs.begin()->second,
                   library.last_error());
    }
  }
  return {};
}

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
  KVANT_RETURN_IF_ERROR(check_geometry(plan->geometry, device->name()));
  KVANT_RETURN_IF_ERROR(check_wide_prompts(*plan, *device));
  KVANT_RETURN_IF_ERROR(check_rules(*plan, device->name()));
  KVANT_RETURN_IF_ERROR(check_scores(*plan, device->name()));
  KVANT_RETURN_IF_ERROR(check_correction(*plan, device->name()));
  KVANT_RETURN_IF_ERROR(check_prompts(*plan, device->name()));
  auto placed = std::make_shared<Plan>(*plan);
  placed->tail = find_format("bf16");
  placed->recipe.tail = "bf16";
  // The device multiplies integer codes exactly, and rounds q and P to half precision. Prompts use integers
  // if the device has kernels for them.
  if (plan->recipe.products == Products::integer && takes_integer_prompts(*plan))
    placed->recipe.prompt = PromptAttention::flashq;
  placed->recipe.products = Products::real;
  if (!is_unquantized(*placed)) KVANT_RETURN_IF_ERROR(check_formats(*placed, *device));
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

EntryLayout sink_layout(const Plan& plan) {
  const int n_tiles = (device_sink(plan) + kDeviceTile - 1) / kDeviceTile;
  return plain_layout(plan, std::max(n_tiles, 1) * kDeviceTile,
                      layers_where(plan, [&](int layer) { return plan.layers[layer].sink > 0; }));
}

EntryLayout protected_layout(const Plan& plan) {
  return plain_layout(plan, kPageTokens,
                      layers_where(plan, [&](int layer) { return protects_by_score(plan, layer); }));
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
std::int64_t bytes_beside_pages(const Plan& plan, int n_tokens) {
  const int n_sealed = page_counts(n_tokens, device_window(plan)).sealed;
  // A sequence has the sums of a correction. A step that seals makes a second set of sums.
  const std::int64_t sums = is_corrected(plan) ? static_cast<std::int64_t>(correction_layout(plan).bytes) : 0;
  std::int64_t bytes = sums;
  // A sequence has the observers of the open page. In a step that ends a page, a sequence also has the
  // observers of the next page.
  if (protects_by_score(plan)) bytes += 2 * static_cast<std::int64_t>(observer_layout(plan).bytes);
  if (n_sealed == 0) return bytes;
  bytes += sums;
  if (device_sink(plan) > 0) bytes += static_cast<std::int64_t>(sink_layout(plan).bytes);
  if (protects_by_score(plan))
    bytes += static_cast<std::int64_t>(protected_layout(plan).bytes) * protected_pages(plan, n_sealed);
  return bytes;
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
  return bytes + batch.n_seqs * bytes_beside_pages(plan, n_tokens);
}

}  // namespace kvant
