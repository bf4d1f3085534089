// GrowingList is a list to which threads add, and in which they search, without a lock. Elements never move
// during the list's life.
#pragma once

#include <atomic>
#include <utility>

namespace kvant::cuda {

// The list never frees elements, so it suits lists that live as long as the program.
template <class T>
class GrowingList {
 public:
  constexpr GrowingList() = default;

  // Returns the newest value for which is_it(value) holds, or null.
  template <class IsIt>
  const T* find(const IsIt& is_it) const {
    for (const Node* node = newest_.load(std::memory_order_acquire); node != nullptr; node = node->next)
      if (is_it(node->value)) return &node->value;
    return nullptr;
  }
  // Adds a value and returns its place in the list. Two threads that search for the same value at the same
  // time may both add it.
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
