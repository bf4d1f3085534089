// Parses and prints one side of a recipe and the key of an override. In `k@0-3=hadamard:ch4g128`, the side is
// on the right of '=' and the override's key on the left.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "recipe/recipe.h"

namespace kvant {

// Returns the error for an unknown format, with the nearest names. `others` are further names that the caller
// would have accepted.
Error unknown_format(const std::string& name, std::span<const std::string> others = {});

// Parses [transform+transform...:]format. The error for an unknown name suggests the nearest names.
Result<SideRecipe> parse_side(const std::string& text);
std::string to_string(const SideRecipe& side);

// Parses LAYER or FIRST-LAST (both included). Returns nothing if the text is neither.
std::optional<LayerRange> parse_layers(const std::string& text);
std::string to_string(const LayerRange& layers);

// Returns whether `key` starts like an override, k@... or v@...
bool is_override_key(const std::string& key);
// Parses `key`, which is k@LAYER, k@FIRST-LAST, k@LAYER.HEAD or k@FIRST-LAST.HEAD, or one of the four forms
// with v instead of k. `side` is the text after '='.
Result<SideOverride> parse_override(const std::string& key, const std::string& side);
// Returns the text before '='.
std::string override_key(const SideOverride& override);

}  // namespace kvant
