// Suggests known names that resemble a wrong name, for error messages. The suggestions tell a user who
// mistypes the name of a format or a recipe which names exist.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace kvant {

// Returns up to n of the `known` names that resemble `name`, nearest first, by edit distance without regard
// to case. Ties keep the order of `known`. Names that share less than about half of their letters with `name`
// are left out.
std::vector<std::string> similar_names(const std::string& name, std::span<const std::string> known, int n);

}  // namespace kvant
