// EntryHold is one holder of an entry of a store. The destructor releases the entry.
#pragma once

#include <utility>

#include "cache/page_ledger.h"

namespace kvant {

class EntryHold {
 public:
  EntryHold() = default;
  // Takes over an entry that the caller has held once. The store outlives the hold.
  EntryHold(EntryStore& store, PageEntry entry) : store_(&store), entry_(entry) {}
  ~EntryHold() { reset(); }
  EntryHold(EntryHold&& other) noexcept : store_(other.store_), entry_(std::exchange(other.entry_, {})) {}
  EntryHold& operator=(EntryHold&& other) noexcept {
    std::swap(store_, other.store_);
    std::swap(entry_, other.entry_);
    return *this;
  }

  PageEntry entry() const { return entry_; }
  // Returns another holder of the entry.
  EntryHold share() const {
    if (!entry_.held()) return {};
    store_->retain(entry_);
    return {*store_, entry_};
  }
  void reset() noexcept {
    if (entry_.held()) store_->release(std::exchange(entry_, {}));
  }

 private:
  EntryStore* store_ = nullptr;
  PageEntry entry_;
};

}  // namespace kvant
