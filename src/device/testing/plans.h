// Makes plans for tests of kvant_supports, which every device library answers.
#pragma once

#include <cstdint>

#include "kvant/kvant.h"

namespace kvant::device::testing {

// Returns the shape of one sequence with one query head of one KV head.
inline kvant_decode_shape shape_of(const char* key, const char* value, int d) {
  kvant_decode_shape shape{};
  shape.struct_size = sizeof shape;
  shape.n_seqs = shape.n_kv_heads = shape.group = 1;
  shape.head_dim = d;
  shape.softmax_scale = 1;
  shape.key_format = key;
  shape.value_format = value;
  return shape;
}

// Returns a plan of a shape, which has to outlive the plan.
inline kvant_plan plan_of(const kvant_decode_shape& shape, std::uint32_t features = 0) {
  return {sizeof(kvant_plan), &shape, nullptr, features, 0};
}

}  // namespace kvant::device::testing
