// The text forms of one side and of an override: the right and the left part of `k@0-3=hadamard:ch4g128`.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "recipe/recipe.h"

namespace kvant {

// Makes the error for an unknown format, with the nearest names. others: names that are valid there, too.
Error unknown_format(const std::string& name, std::span<const std::string> others = {});

// Parses [transform+transform...:]format. The error suggests the nearest names if a name is unknown.
Result<SideRecipe> parse_side(const std::string& text);
std::string to_string(const SideRecipe& side);

// Parses LAYER or FIRST-LAST, both included; returns nothing if the text is neither.
std::optional<LayerRange> parse_layers(const std::string& text);
std::string to_string(const LayerRange& layers);

// Whether `key` belongs to an override: k@... or v@...
bool is_override_key(const std::string& key);
// Parses k@LAYER, k@FIRST-LAST, k@LAYER.HEAD or k@FIRST-LAST.HEAD, and the same for v, with the side that
// they get.
Result<SideOverride> parse_override(const std::string& key, const std::string& side);
// Returns the key alone.
std::string override_key(const SideOverride& override);

}  // namespace kvant
