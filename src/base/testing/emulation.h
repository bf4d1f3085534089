// Lets tests on an emulated processor (make test-arm) check less, because they take ten times as long or
// longer there.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace kvant::testing {

#ifdef KVANT_EMULATED
inline constexpr bool kEmulated = true;
#else
inline constexpr bool kEmulated = false;
#endif

// Returns all items, or every n-th item on an emulated processor.
template <class Item>
std::vector<Item> fewer(std::vector<Item> items, std::size_t n) {
  if (!kEmulated) return items;
  std::vector<Item> kept;
  for (std::size_t i = 0; i < items.size(); i += n) kept.push_back(std::move(items[i]));
  return kept;
}

}  // namespace kvant::testing
