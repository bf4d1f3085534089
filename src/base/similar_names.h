// Known names that resemble a wrong one: for error messages.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace kvant {

// Up to n of `known` that resemble `name`, nearest first (edit distance without regard to case; ties keep
// the order of `known`). Names that have less than about half of their letters in common are left out.
std::vector<std::string> similar_names(const std::string& name, std::span<const std::string> known, int n);

}  // namespace kvant
