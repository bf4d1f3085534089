// PageLayout: where the page of each (layer, KV head, side) lies in an entry that is one run of bytes.
#pragma once

#include <cstddef>
#include <vector>

#include "recipe/plan.h"

namespace kvant {

// The canonical entry, for interchange: layers in ascending order, in each the KV heads, in each K and V, one
// after another without gaps; each page as its format specifies it, whatever the order of codes in memory.
class PageLayout {
 public:
  // Of these layers of the plan, ascending.
  PageLayout(const Plan& plan, const std::vector<int>& layers);

  // Bytes from the entry's beginning. head: an index among the layers' KV heads, layer by layer.
  std::size_t offset(int head, Side side) const { return offsets_[2 * head + static_cast<int>(side)]; }
  std::size_t entry_bytes() const { return offsets_.back(); }

 private:
  std::vector<std::size_t> offsets_;  // [2 * heads + 1]
};

}  // namespace kvant
