// The text forms of one side, and of an override: the right and the left of `k@0-3=hadamard:ch4g128`.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "recipe/recipe.h"

namespace kvant {

// The error for a name that is no format's, with the nearest ones. others: names that may stand there, too.
Error unknown_format(const std::string& name, std::span<const std::string> others = {});

// [transform+transform...:]format. Fails with the nearest names where a name is unknown.
Result<SideRecipe> parse_side(const std::string& text);
std::string to_string(const SideRecipe& side);

// LAYER or FIRST-LAST, both included; nothing where the text is neither.
std::optional<LayerRange> parse_layers(const std::string& text);
std::string to_string(const LayerRange& layers);

// Whether `key` is one of an override: k@... or v@...
bool is_override_key(const std::string& key);
// k@LAYER, k@FIRST-LAST, k@LAYER.HEAD or k@FIRST-LAST.HEAD, and v alike, with the side that they get.
Result<SideOverride> parse_override(const std::string& key, const std::string& side);
// The key alone.
std::string override_key(const SideOverride& override);

}  // namespace kvant
