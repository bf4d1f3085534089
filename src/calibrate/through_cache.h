// Passes captured values through the cache's encoding. Quality and sensitivities are measured on values that
// have passed through the encoding.
#pragma once

#include <vector>

#include "format/format.h"
#include "transform/transform.h"

namespace kvant {

// Transforms, encodes and decodes whole pages of values [n, d] in `format`. The first token has position
// `first_position`. The first `sink` tokens are left out of their page and stay exact.
std::vector<float> through_cache(const Format& format, const Transform& transform, const PageContext& context,
                                 int sink, int first_position, std::vector<float> values);

}  // namespace kvant
