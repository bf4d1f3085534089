// Finds the sealed entries in the bytes of a sequence (sequence_image.h), for code that stores these entries
// in another way, such as compact session files.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "recipe/plan.h"

namespace kvant {

// Describes the sealed entries of one layer group, one after another in canonical order.
struct SealedRun {
  std::vector<int> layers;  // in ascending order
  std::size_t first = 0;    // byte offset in the image
  std::size_t entry_bytes = 0;
  int first_page = 0, n_pages = 0;
  std::size_t bytes() const { return entry_bytes * static_cast<std::size_t>(n_pages); }
};

// Returns the runs in the order in which they lie in an image of n_bytes bytes. `start` is the beginning of
// the image, at least image_start_bytes(plan) bytes. The result is empty if the bytes are no sequence of such
// a plan.
std::optional<std::vector<SealedRun>> sealed_runs(const Plan& plan, std::span<const std::byte> start,
                                                  std::size_t n_bytes);
std::size_t image_start_bytes(const Plan& plan);

}  // namespace kvant
