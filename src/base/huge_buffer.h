// HugeBuffer: uninitialized bytes for large data that is written once and read once. The operating system may
// back them with huge pages, since the first touch of a small page costs as much as the copy that fills it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace kvant {

class HugeBuffer {
 public:
  HugeBuffer() = default;
  // Allocates n bytes with undefined contents. Throws std::bad_alloc.
  explicit HugeBuffer(std::size_t n);

  std::byte* data() { return memory_.get(); }
  std::size_t size() const { return memory_ == nullptr ? 0 : size_; }
  std::span<const std::byte> bytes() const { return {memory_.get(), size()}; }

 private:
  struct Free {
    bool is_huge;
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_{nullptr, {false}};
  std::size_t size_ = 0;
};

}  // namespace kvant
