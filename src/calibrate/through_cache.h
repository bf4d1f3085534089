// What the cache gives back of captured values.
#pragma once

#include <vector>

#include "format/format.h"
#include "transform/transform.h"

namespace kvant {

// Whole pages of values [n, d], from the first token of a sequence on, transformed, encoded in `format`, and
// back. The first `sink` tokens are left out of their page and stay exact.
std::vector<float> through_cache(const Format& format, const Transform& transform, const PageContext& context,
                                 int sink, std::vector<float> values);

}  // namespace kvant
