// SizeBudget is the largest permitted size of a cache. allocate_bytes() finds the allocation of bits that
// just fits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/geometry.h"
#include "base/result.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

struct SizeBudget {
  double bits = 0;         // bits per value of K and V, with everything included; 0 if `bytes` is given
  std::int64_t bytes = 0;  // bytes of one sequence
  int context = 0;         // the number of tokens at which the limit applies; 0 means unset

  std::int64_t bytes_at(const Geometry& geometry, int context) const;
};

// Parses a size, optionally with its context: "2.5bit", "2.5bit@8k", "64MiB@16k", "1.5GiB@32768".
Result<SizeBudget> parse_size_budget(const std::string& text);
// Checks that the budget has room for the smallest formats of the recipe's ladder everywhere, but not for the
// largest. Otherwise, the error says how much those formats take. The check needs no calibration. The recipe
// must have a ladder.
Status check_size_budget(const Recipe& recipe, const Geometry& geometry, std::int64_t max_bytes, int context);
// Parses a number of bytes, such as "64MiB", "8GiB", "512KiB" or "1000000".
Result<std::int64_t> parse_bytes(const std::string& text);

// Chooses formats for all heads of `recipe` (bit_allocation.h), which must have a ladder. A sequence of
// `context` tokens then takes at most `max_bytes`, and nearly as many. Returns an error if even the smallest
// formats take more, or if `constants` lack sensitivities.
Result<Recipe> allocate_bytes(const Recipe& recipe, const Geometry& geometry,
                              std::shared_ptr<const Constants> constants, std::int64_t max_bytes,
                              int context);

}  // namespace kvant
