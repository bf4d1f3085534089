// A list to which threads add and in which they look without a lock. What it holds stays where it is as long
// as the list.
#pragma once

#include <atomic>
#include <utility>

namespace kvant::cuda {

// For lists as long as the program: what they hold is never given back.
template <class T>
class GrowingList {
 public:
  constexpr GrowingList() = default;

  // The newest for which is_it(value), or null.
  template <class IsIt>
  const T* find(const IsIt& is_it) const {
    for (const Node* node = newest_.load(std::memory_order_acquire); node != nullptr; node = node->next)
      if (is_it(node->value)) return &node->value;
    return nullptr;
  }
  // Two threads may both add what neither has found.
  const T* add(T value) {
    auto* node = new Node{std::move(value), newest_.load(std::memory_order_relaxed)};
    while (!newest_.compare_exchange_weak(node->next, node, std::memory_order_release,
                                          std::memory_order_relaxed)) {
    }
    return &node->value;
  }

 private:
  struct Node {
    T value;
    const Node* next;
  };
  std::atomic<const Node*> newest_{nullptr};
};

}  // namespace kvant::cuda
