// Parses and prints one side of a recipe and the key of an override. In `k@0-3=hadamard:ch4g128`, the text
// after '=' is the side and the text before '=' is the key of the override.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "recipe/recipe.h"

namespace kvant {

// Returns the error for an unknown format, with the nearest names. `others` lists further names that the
// caller accepts.
Error unknown_format(const std::string& name, std::span<const std::string> others = {});

// Parses [transform+transform...:]format. The error for an unknown name suggests the nearest names.
Result<SideRecipe> parse_side(const std::string& text);
std::string to_string(const SideRecipe& side);

// Parses LAYER or FIRST-LAST (both included). Returns nothing if the text is neither.
std::optional<LayerRange> parse_layers(const std::string& text);
std::string to_string(const LayerRange& layers);

// Returns whether `key` starts with k@ or v@ like the key of an override.
bool is_override_key(const std::string& key);
// Parses `key`, which is k@LAYER, k@FIRST-LAST or k@edgeN, with or without .HEAD, or the same with v@. `side`
// is the text after '='.
Result<SideOverride> parse_override(const std::string& key, const std::string& side);
// Returns the key of an override, which is the text before '='.
std::string override_key(const SideOverride& override);

}  // namespace kvant
