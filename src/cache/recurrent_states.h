// RecurrentStates keeps the states of sequences in layers without attention. All states have one size,
// whatever the lengths of the sequences. Forks share a state until one of them goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/huge_buffer.h"
#include "cache/memory_budget.h"
#include "cache/page_device.h"

namespace kvant {

// Sequences share a state until one of them goes on. Null means zeros, the state of a new sequence.
using RecurrentState = std::shared_ptr<const float>;

// The class is not thread-safe. States return their memory to the object, which outlives them.
class RecurrentStates {
 public:
  // Each state has n_values values; with 0, no state is ever taken. States lie in the memory of `device`,
  // which outlives this object, or in host memory if `device` is null.
  RecurrentStates(std::int64_t n_values, MemoryBudget& budget, PageDevice* device = nullptr)
      : n_values_(n_values), budget_(budget), device_(device) {}
  RecurrentStates(const RecurrentStates&) = delete;
  RecurrentStates& operator=(const RecurrentStates&) = delete;
  ~RecurrentStates();

  // Returns a state with undefined contents, or null if the budget or the device's memory is exhausted.
  // Throws std::bad_alloc.
  std::shared_ptr<float> take();

  // Keeps the memory of at most n released states for new states. A step of n sequences takes n states and
  // gives n back.
  void keep_spares(std::size_t n);

  std::int64_t state_bytes() const { return n_values_ * static_cast<std::int64_t>(sizeof(float)); }
  std::int64_t bytes_in_use() const { return n_held_ * state_bytes(); }  // Counts each held state once.

 private:
  struct Owner;
  struct Memory {  // Memory of one state.
    HugeBuffer on_host;
    DeviceMemory on_device{nullptr, {nullptr}};
    float* values() {
      return reinterpret_cast<float*>(on_device == nullptr ? static_cast<void*>(on_host.data())
                                                           : on_device.get());
    }
  };
  Memory allocate() const;
  Memory memory_for_state();
  void give_back(Memory memory) noexcept;
  void drop_spares(std::size_t n_left) noexcept;

  std::int64_t n_values_;
  MemoryBudget& budget_;
  PageDevice* device_;
  std::vector<Memory> spares_;  // The list has room for n_spares_ entries.
  std::size_t n_spares_ = 0;
  std::int64_t n_held_ = 0;
};

}  // namespace kvant
