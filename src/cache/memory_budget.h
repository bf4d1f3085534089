// MemoryBudget counts what a cache takes from the operating system, to the byte, and refuses more than a
// limit.
#pragma once

#include <cstdint>

namespace kvant {

class MemoryBudget {
 public:
  // `limit` is in bytes; 0 means no limit.
  explicit MemoryBudget(std::int64_t limit) : limit_(limit) {}

  // Returns false and takes nothing if the bytes would exceed the limit.
  bool take(std::int64_t bytes) {
    if (limit_ > 0 && taken_ + bytes > limit_) return false;
    taken_ += bytes;
    return true;
  }
  void give_back(std::int64_t bytes) { taken_ -= bytes; }

  std::int64_t taken() const { return taken_; }
  std::int64_t limit() const { return limit_; }

 private:
  std::int64_t limit_;
  std::int64_t taken_ = 0;
};

}  // namespace kvant
