#include "recipe/side_recipe.h"

#include <algorithm>

#include "base/similar_names.h"
#include "format/format.h"
#include "recipe/message_text.h"
#include "recipe/number_text.h"
#include "transform/transform.h"

namespace kvant {
namespace {

// The index of a layer or KV head is at most kLargestIndex.
constexpr int kLargestIndex = 9999;
// The prefix kEdge begins the name of the first and last N layers, such as edge2.
constexpr const char* kEdge = "edge";

Result<std::vector<std::string>> parse_transforms(const std::string& text) {
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('+', begin), text.size());
    const std::string name = text.substr(begin, end - begin);
    if (find_transform_kind(name) == nullptr) {
      const auto known = transform_names();
      const auto near = similar_names(name, known, 3);
      const std::string hint = near.empty() ? "; known transforms: " + listed(known) : did_you_mean(near);
      return error("unknown transform {}{}", quoted(name), hint);
    }
    names.push_back(name);
    begin = end + 1;
  }
  return names;
}

}  // namespace

Error unknown_format(const std::string& name, std::span<const std::string> others) {
  constexpr int kMost = 3;
  std::vector<std::string> known(others.begin(), others.end());
  const auto formats = format_names();
  known.insert(known.end(), formats.begin(), formats.end());
  const auto near = similar_names(name, known, kMost);
  if (!near.empty()) return error("unknown format {}{}", quoted(name), did_you_mean(near));
  // The message lists patterns, because each pattern stands for about twenty formats.
  std::vector<std::string> patterns;
  for (const FormatFamily* family : format_families()) patterns.emplace_back(family->pattern);
  return error("unknown format {}; known formats: {}", quoted(name), listed(patterns));
}

Result<SideRecipe> parse_side(const std::string& text) {
  SideRecipe side;
  const std::size_t colon = text.find(':');
  if (colon != std::string::npos) {
    auto transforms = parse_transforms(text.substr(0, colon));
    if (!transforms.ok()) return transforms.error();
    side.transforms = std::move(transforms).value();
  }
  side.format = colon == std::string::npos ? text : text.substr(colon + 1);
  if (find_format(side.format) == nullptr) return unknown_format(side.format);
  return side;
}

std::string to_string(const SideRecipe& side) {
  std::string text;
  for (const std::string& name : side.transforms) text += (text.empty() ? "" : "+") + name;
  return text.empty() ? side.format : text + ":" + side.format;
}

namespace {

// Parses edgeN, or what parse_layers() parses.
std::optional<LayerRange> parse_override_layers(const std::string& text) {
  const std::string prefix = kEdge;
  if (!text.starts_with(prefix)) return parse_layers(text);
  const auto layers = parse_count(text.substr(prefix.size()), kLargestIndex);
  if (!layers || *layers == 0) return std::nullopt;
  return LayerRange{-*layers, *layers - 1};
}

}  // namespace

std::optional<LayerRange> parse_layers(const std::string& text) {
  const std::size_t dash = text.find('-');
  const auto first = parse_count(text.substr(0, dash), kLargestIndex);
  const auto last = dash == std::string::npos ? first : parse_count(text.substr(dash + 1), kLargestIndex);
  if (!first || !last || *first > *last) return std::nullopt;
  return LayerRange{*first, *last};
}

std::string to_string(const LayerRange& layers) {
  return layers.first == layers.last ? std::to_string(layers.first)
                                     : fmt::format("{}-{}", layers.first, layers.last);
}

bool is_override_key(const std::string& key) {
  return key.starts_with("k@") || key.starts_with("v@");
}

Result<SideOverride> parse_override(const std::string& key, const std::string& side) {
  SideOverride override;
  override.side = key[0] == 'k' ? Side::key : Side::value;
  const std::string place = key.substr(2);
  const std::size_t dot = place.find('.');
  const auto layers = parse_override_layers(place.substr(0, dot));
  const auto head = dot == std::string::npos ? -1 : parse_count(place.substr(dot + 1), kLargestIndex);
  if (!layers || !head) {
    return error(
        "{} does not name layers: write {}@LAYER, {}@FIRST-LAST, {}@edgeN or {}@LAYER.HEAD, as in k@0-3 or "
        "v@18.1",
        quoted(key), key[0], key[0], key[0], key[0]);
  }
  override.first_layer = layers->first;
  override.last_layer = layers->last;
  override.kv_head = *head;
  auto recipe = parse_side(side);
  if (!recipe.ok()) return recipe.error();
  override.recipe = std::move(recipe).value();
  return override;
}

std::string override_key(const SideOverride& override) {
  const std::string layers = override.first_layer < 0
                                 ? kEdge + std::to_string(-override.first_layer)
                                 : to_string(LayerRange{override.first_layer, override.last_layer});
  std::string key = fmt::format("{}@{}", override.side == Side::key ? 'k' : 'v', layers);
  if (override.kv_head >= 0) key += fmt::format(".{}", override.kv_head);
  return key;
}

}  // namespace kvant
