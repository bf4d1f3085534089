// Suggests known names that resemble a wrong name, for error messages. A user who mistypes a format or a
// recipe sees what exists.
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
