// How many bytes a cache will take, before any of it exists.
#pragma once

#include <cstdint>
#include <vector>

#include "recipe/plan.h"

namespace kvant {

// Bytes of one sequence of n_tokens >= 0 tokens under `plan`, once its prompt has ended: pages, the tail, the
// sink's side pages, sums of a correction (token lists, some bytes a head, left out; pages that a share of
// evictions would free counted). By layer.
std::vector<std::int64_t> cache_bytes_by_layer(const Plan& plan, int n_tokens);
std::int64_t predicted_cache_bytes(const Plan& plan, int n_tokens);

// Bytes that n_tokens take as plain BF16 in the same layers: what a recipe is compared with.
std::int64_t bf16_bytes(const Geometry& geometry, int n_tokens);

// Memory that new allocations can have now: MemAvailable, within the control group's limit where one is
// set. 0: unknown.
std::int64_t available_memory_bytes();

}  // namespace kvant
