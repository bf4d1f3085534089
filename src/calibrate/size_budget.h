// SizeBudget: how large a cache may be, and the allocation of bits that just fits.
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
  double bits = 0;         // for each element of K and V, all included; 0: `bytes` instead
  std::int64_t bytes = 0;  // of one sequence
  int context = 0;         // tokens at which that holds; 0: not said

  std::int64_t bytes_at(const Geometry& geometry, int context) const;
};

// "2.5bit", "2.5bit@8k", "64MiB@16k", "1.5GiB@32768": an amount, and the context it is for.
Result<SizeBudget> parse_size_budget(const std::string& text);
// Whether the budget has room for the cheapest formats of the recipe's ladder everywhere, and not for the
// dearest: an error that says what those take where it is not so. Needs no calibration. The recipe has a
// ladder.
Status check_size_budget(const Recipe& recipe, const Geometry& geometry, std::int64_t max_bytes, int context);
// "64MiB", "8GiB", "512KiB", "1000000": bytes. An error where the text is none of these.
Result<std::int64_t> parse_bytes(const std::string& text);

// `recipe`, which has a ladder, with formats for all of its heads (bit_allocation.h) so that a sequence of
// `context` tokens takes at most `max_bytes`, and nearly as many. Errors: the cheapest formats take more;
// `constants` lack sensitivities.
Result<Recipe> allocate_bytes(const Recipe& recipe, const Geometry& geometry,
                              std::shared_ptr<const Constants> constants, std::int64_t max_bytes,
                              int context);

}  // namespace kvant
