// RecurrentStates: the states that layers without attention keep of sequences, all of one size, whatever the
// sequences' lengths.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/huge_buffer.h"
#include "cache/memory_budget.h"
#include "cache/page_device.h"

namespace kvant {

// A state that sequences share until one of them goes on; null: zeros, which a new sequence has.
using RecurrentState = std::shared_ptr<const float>;

// Not thread-safe. States go back to it: it outlives them.
class RecurrentStates {
 public:
  // n_values of each; 0: none is ever taken. In the memory of `device`, which outlives them; null: in the
  // host's.
  RecurrentStates(std::int64_t n_values, MemoryBudget& budget, PageDevice* device = nullptr)
      : n_values_(n_values), budget_(budget), device_(device) {}
  RecurrentStates(const RecurrentStates&) = delete;
  RecurrentStates& operator=(const RecurrentStates&) = delete;
  ~RecurrentStates();

  // One with undefined contents; null where the budget or a device's memory is exhausted. Throws
  // std::bad_alloc.
  std::shared_ptr<float> take();

  // Memory of states that nobody holds any more is kept for so many new ones, at most: what a step of as many
  // sequences takes and gives back.
  void keep_spares(std::size_t n);

  std::int64_t state_bytes() const { return n_values_ * static_cast<std::int64_t>(sizeof(float)); }
  std::int64_t bytes_in_use() const { return n_held_ * state_bytes(); }  // of states that are held, each once

 private:
  struct Owner;
  struct Memory {  // one of them
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
  std::vector<Memory> spares_;  // has room for n_spares_
  std::size_t n_spares_ = 0;
  std::int64_t n_held_ = 0;
};

}  // namespace kvant
