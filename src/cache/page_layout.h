// PageLayout says where the page of each (layer, KV head, side) lies in an entry that is one run of bytes.
#pragma once

#include <cstddef>
#include <vector>

#include "recipe/plan.h"

namespace kvant {

// Describes the canonical entry, which is used for interchange. Layers come in ascending order, in each layer
// the KV heads, and for each head K and V, without gaps. Each page has the bytes that its format specifies,
// whatever the order of codes in memory.
class PageLayout {
 public:
  // `layers` are layers of the plan, in ascending order.
  PageLayout(const Plan& plan, const std::vector<int>& layers);

  // Returns the bytes from the entry's beginning. `head` is an index among the layers' KV heads, layer by
  // layer.
  std::size_t offset(int head, Side side) const { return offsets_[2 * head + static_cast<int>(side)]; }
  std::size_t entry_bytes() const { return offsets_.back(); }

 private:
  std::vector<std::size_t> offsets_;  // [2 * heads + 1]
};

}  // namespace kvant
