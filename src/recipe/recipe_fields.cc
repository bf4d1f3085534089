#include "recipe/recipe_fields.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/similar_names.h"
#include "format/format.h"
#include "recipe/head_mix.h"
#include "recipe/message_text.h"
#include "recipe/number_text.h"
#include "recipe/side_recipe.h"

namespace kvant {
namespace {

// A window may have kLargestWindow tokens. The limit keeps sums of token indices far from overflow.
constexpr int kLargestWindow = 1 << 24;

// Sets the format of one side in all layers and heads. Earlier overrides of the side are discarded.
Status set_side(Recipe& recipe, Side side, const std::string& text) {
  auto parsed = parse_side(text);
  if (!parsed.ok()) return parsed.error();
  (side == Side::key ? recipe.k : recipe.v) = std::move(parsed).value();
  std::erase_if(recipe.overrides, [side](const SideOverride& o) { return o.side == side; });
  return {};
}

Status set_sink(Recipe& recipe, const std::string& text) {
  const auto tokens = parse_count(text, kPageTokens);
  if (!tokens) return error("{} is not a number of tokens from 0 to {}", quoted(text), kPageTokens);
  recipe.sink = *tokens;
  return {};
}

Status set_window(Recipe& recipe, const std::string& text) {
  const auto tokens = parse_count(text, kLargestWindow);
  if (!tokens || *tokens % kPageTokens != 0) {
    return error("{} is not a multiple of {} tokens (0, 128, 256, ..., {})", quoted(text), kPageTokens,
                 kLargestWindow);
  }
  recipe.window = *tokens;
  return {};
}

Status set_prefill(Recipe& recipe, const std::string& text) {
  if (text == "all") {
    recipe.prefill = kPrefillAll;
    return {};
  }
  const auto tokens = parse_count(text, kLargestWindow);
  if (!tokens || *tokens == 0 || *tokens % kPageTokens != 0) {
    return error("{} is neither 'all' nor a multiple of {} tokens (128, 256, ..., {})", quoted(text),
                 kPageTokens, kLargestWindow);
  }
  recipe.prefill = *tokens;
  return {};
}

std::string prefill_text(const Recipe& recipe) {
  return recipe.prefill == kPrefillAll ? "all" : std::to_string(recipe.prefill);
}

// Sets `field` to the number in `text`, which must lie in [low, high].
Status set_number(double& field, const std::string& text, double low, double high) {
  const auto number = parse_number(text, low, high);
  if (!number) return error("{} is not a number from {} to {}", quoted(text), low, high);
  field = *number;
  return {};
}

// Sets `field` to the name of a format. An empty string clears the field.
Status set_format(std::string& field, const std::string& text) {
  if (!text.empty() && find_format(text) == nullptr) return unknown_format(text);
  field = text;
  return {};
}

Status set_ladder(Recipe& recipe, const std::string& text) {
  std::vector<std::string> ladder;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('+', begin), text.size());
    ladder.push_back(text.substr(begin, end - begin));
    if (find_format(ladder.back()) == nullptr) return unknown_format(ladder.back());
    begin = end + 1;
  }
  recipe.ladder = std::move(ladder);
  return {};
}

Status set_tail(Recipe& recipe, const std::string& text) {
  const Format* format = find_format(text);
  if (format != nullptr && !format->row_wise()) {
    return error("the format {} cannot store single tokens, as a tail must", text);
  }
  return set_format(recipe.tail, text);
}

// Each array of names has the order of an enumeration in recipe.h.
constexpr std::array kPromptNames = {"exact", "int8", "int4", "sage", "flashq"};
constexpr std::array kSoftmaxNames = {"exact", "sas", "sas-paper"};
constexpr std::array kProductsNames = {"real", "integer"};
constexpr std::array kEncodeNames = {"plain", "sampled", "shaped"};
constexpr std::array kCorrectionNames = {"none", "absolute", "relative"};

// Returns the index of `text` in `names`.
Result<std::size_t> choice(const std::string& text, std::span<const char* const> names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (text == names[i]) return i;
  }
  return error("{} is not one of {}", quoted(text),
               listed(std::vector<std::string>(names.begin(), names.end())));
}

Status set_correction_layers(Recipe& recipe, const std::string& text) {
  if (text == "all") {
    recipe.correction_layers = {};
    return {};
  }
  const auto layers = parse_layers(text);
  if (!layers) {
    return error("{} names no layers: write 'all', LAYER or FIRST-LAST, as in 0-9 (counted from 0)",
                 quoted(text));
  }
  recipe.correction_layers = *layers;
  return {};
}

std::string correction_layers_text(const Recipe& recipe) {
  const LayerRange& layers = recipe.correction_layers;
  return layers == LayerRange{} ? "all" : to_string(layers);
}

template <class Choice>
Status set_choice(Choice& field, const std::string& text, std::span<const char* const> names) {
  const auto index = choice(text, names);
  if (!index.ok()) return index.error();
  field = static_cast<Choice>(*index);
  return {};
}

Status set_mix_metric(Recipe& recipe, const std::string& text) {
  const auto index = choice(text, mix_metrics());
  if (!index.ok()) return index.error();
  recipe.mix_metric = text;
  return {};
}

constexpr RecipeField kFields[] = {
    {"k", "SIDE", "how K is stored: [transform+...:]format",
     [](Recipe& r, const std::string& text) { return set_side(r, Side::key, text); },
     [](const Recipe& r) { return to_string(r.k); }},
    {"v", "SIDE", "how V is stored: [transform+...:]format",
     [](Recipe& r, const std::string& text) { return set_side(r, Side::value, text); },
     [](const Recipe& r) { return to_string(r.v); }},
    {"sink", "0 to 128", "number of first tokens of a sequence that stay unquantized", set_sink,
     [](const Recipe& r) { return std::to_string(r.sink); }},
    {"window", "a multiple of 128", "number of newest tokens that stay unquantized", set_window,
     [](const Recipe& r) { return std::to_string(r.window); }},
    {"prefill", "a multiple of 128, or all",
     "tokens per block of a prompt; the tokens of a block attend to each other unquantized", set_prefill,
     prefill_text},
    {"prompt", "exact, int8, int4, sage or flashq", "precision of the attention within a block of a prompt",
     [](Recipe& r, const std::string& text) { return set_choice(r.prompt, text, kPromptNames); },
     [](const Recipe& r) -> std::string { return kPromptNames[static_cast<int>(r.prompt)]; }},
    {"protect", "0 to 0.5",
     "share of tokens that stay unquantized, chosen by the attention that they receive",
     [](Recipe& r, const std::string& text) { return set_number(r.protect, text, 0, 0.5); },
     [](const Recipe& r) { return number_text(r.protect); }},
    {"evict", "0 to 1", "share of tokens outside the window that are evicted, least attended first",
     [](Recipe& r, const std::string& text) { return set_number(r.evict, text, 0, 1); },
     [](const Recipe& r) { return number_text(r.evict); }},
    {"mix", "0 to 1", "share of a layer's KV heads that are stored as mix_k and mix_v, lowest priority first",
     [](Recipe& r, const std::string& text) { return set_number(r.mix, text, 0, 1); },
     [](const Recipe& r) { return number_text(r.mix); }},
    {"mix_metric", "gap-std, entropy, min-max or variation", "calibrated priority of heads", set_mix_metric,
     [](const Recipe& r) { return r.mix_metric; }},
    {"mix_k", "FORMAT", "format of K in the heads that mix selects; none: as in the other heads",
     [](Recipe& r, const std::string& text) { return set_format(r.mix_k, text); },
     [](const Recipe& r) { return r.mix_k; }},
    {"mix_v", "FORMAT", "format of V in the heads that mix selects; none: as in the other heads",
     [](Recipe& r, const std::string& text) { return set_format(r.mix_v, text); },
     [](const Recipe& r) { return r.mix_v; }},
    {"softmax", "exact, sas or sas-paper", "exponential of the softmax: exact, or a table and a polynomial",
     [](Recipe& r, const std::string& text) { return set_choice(r.softmax, text, kSoftmaxNames); },
     [](const Recipe& r) -> std::string { return kSoftmaxNames[static_cast<int>(r.softmax)]; }},
    {"products", "real or integer", "arithmetic of the products q.K and P.V",
     [](Recipe& r, const std::string& text) { return set_choice(r.products, text, kProductsNames); },
     [](const Recipe& r) -> std::string { return kProductsNames[static_cast<int>(r.products)]; }},
    {"skip", "0 to 1", "softmax weight below which V of a token is not read",
     [](Recipe& r, const std::string& text) { return set_number(r.skip, text, 0, 1); },
     [](const Recipe& r) { return number_text(r.skip); }},
    {"correction", "none, absolute or relative",
     "linear attention over the quantization error, and its scale",
     [](Recipe& r, const std::string& text) { return set_choice(r.correction, text, kCorrectionNames); },
     [](const Recipe& r) -> std::string { return kCorrectionNames[static_cast<int>(r.correction)]; }},
    {"correction_layers", "all or FIRST-LAST", "layers that have the correction", set_correction_layers,
     correction_layers_text},
    {"budget", "0 to 16", "mean bits per value, allocated over layers, heads and sides; 0: no allocation",
     [](Recipe& r, const std::string& text) { return set_number(r.budget, text, 0, 16); },
     [](const Recipe& r) { return number_text(r.budget); }},
    {"ladder", "FORMAT+FORMAT...", "formats that the budget is allocated among", set_ladder,
     [](const Recipe& r) { return fmt::format("{}", fmt::join(r.ladder, "+")); }},
    {"encode", "plain, sampled or shaped",
     "choice of K's trellis codes: plain by squared error, sampled by queries of a short text, shaped by "
     "calibrated queries",
     [](Recipe& r, const std::string& text) { return set_choice(r.encode, text, kEncodeNames); },
     [](const Recipe& r) -> std::string { return kEncodeNames[static_cast<int>(r.encode)]; }},
    {"tail", "FORMAT", "row-wise format of unsealed tokens; none: bf16, or f16 if all formats are f16",
     set_tail, [](const Recipe& r) { return r.tail; }},
};

Error unknown_key(const std::string& key) {
  std::vector<std::string> keys;
  for (const RecipeField& field : kFields) keys.emplace_back(field.key);
  const auto near = similar_names(key, keys, 3);
  return error("unknown key {}{}; the keys are {}, and k@LAYERS and v@LAYERS", quoted(key),
               did_you_mean(near), listed(keys));
}

Status with_key(const std::string& key, const Status& status) {
  if (status.ok()) return {};
  return error("{}: {}", key, status.error().message);
}

Status set_override(Recipe& recipe, const std::string& key, const std::string& text) {
  auto override = parse_override(key, text);
  if (!override.ok()) return override.error();
  recipe.overrides.push_back(std::move(override).value());
  return {};
}

}  // namespace

std::span<const RecipeField> recipe_fields() {
  return kFields;
}

Status set_recipe_key(Recipe& recipe, const std::string& key, const std::string& text) {
  if (is_override_key(key)) return set_override(recipe, key, text);
  for (const RecipeField& field : kFields) {
    if (key == field.key) return with_key(key, field.set(recipe, text));
  }
  return unknown_key(key);
}

}  // namespace kvant
