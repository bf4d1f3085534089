// HugeBuffer holds uninitialized bytes for large data that is written once and read once, such as session
// files. The first touch of a small page costs as much as the copy that fills the page. HugeBuffer therefore
// asks the operating system for huge pages.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace kvant {

class HugeBuffer {
 public:
  HugeBuffer() = default;
  // Allocates n bytes with undefined contents. Throws std::bad_alloc if memory is exhausted.
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
