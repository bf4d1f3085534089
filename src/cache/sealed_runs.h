// Where the sealed entries of a sequence's bytes lie (sequence_image.h), for those who store them in another
// way.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "recipe/plan.h"

namespace kvant {

// The sealed entries of one layer group, one after another in canonical order.
struct SealedRun {
  std::vector<int> layers;  // ascending
  std::size_t first = 0;    // byte of the image
  std::size_t entry_bytes = 0;
  int first_page = 0, n_pages = 0;
  std::size_t bytes() const { return entry_bytes * static_cast<std::size_t>(n_pages); }
};

// In the order in which they lie. start: the image's beginning, at least image_start_bytes(plan) of its
// n_bytes. Nothing: these are no sequence of such a plan.
std::optional<std::vector<SealedRun>> sealed_runs(const Plan& plan, std::span<const std::byte> start,
                                                  std::size_t n_bytes);
std::size_t image_start_bytes(const Plan& plan);

}  // namespace kvant
