#include "cache/recurrent_states.h"

#include <utility>

#include "base/check.h"

namespace kvant {

RecurrentStates::~RecurrentStates() {
  KVANT_CHECK(n_held_ == 0, "a state outlives what it came from");
  drop_spares(0);
}

struct RecurrentStates::Owner {
  RecurrentStates* from = nullptr;
  Memory memory;
  Owner() = default;
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  ~Owner() {
    if (from != nullptr) from->give_back(std::move(memory));
  }
};

RecurrentStates::Memory RecurrentStates::allocate() const {
  Memory memory;
  const auto bytes = static_cast<std::size_t>(state_bytes());
  if (device_ == nullptr) {
    memory.on_host = HugeBuffer(bytes);
  } else {
    memory.on_device = allocate_on(*device_, bytes);
  }
  return memory;
}

// Returns memory without values if memory is exhausted.
RecurrentStates::Memory RecurrentStates::memory_for_state() {
  if (!spares_.empty()) {
    Memory spare = std::move(spares_.back());
    spares_.pop_back();
    return spare;
  }
  if (!budget_.take(state_bytes())) return {};
  try {
    Memory memory = allocate();
    if (memory.values() == nullptr) budget_.give_back(state_bytes());
    return memory;
  } catch (...) {
    budget_.give_back(state_bytes());
    throw;
  }
}

std::shared_ptr<float> RecurrentStates::take() {
  const auto owner = std::make_shared<Owner>();
  owner->memory = memory_for_state();
  if (owner->memory.values() == nullptr) return nullptr;
  owner->from = this;
  ++n_held_;
  return {owner, owner->memory.values()};
}

void RecurrentStates::keep_spares(std::size_t n) {
  spares_.reserve(n);
  n_spares_ = n;
  drop_spares(n);
}

void RecurrentStates::give_back(Memory memory) noexcept {
  --n_held_;
  if (spares_.size() < n_spares_) {
    spares_.push_back(std::move(memory));
  } else {
    budget_.give_back(state_bytes());
  }
}

void RecurrentStates::drop_spares(std::size_t n_left) noexcept {
  while (spares_.size() > n_left) {
    spares_.pop_back();
    budget_.give_back(state_bytes());
  }
}

}  // namespace kvant
