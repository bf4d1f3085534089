// DeviceBuffer is memory of a device that grows to what steps need. IndexBuffer gathers the index lists of a
// step on the host and sends them to the device in one copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cache/page_device.h"

namespace kvant {

class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::shared_ptr<PageDevice> device);
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  // Makes the buffer hold at least `bytes` bytes. A buffer that grows loses its contents. `purpose` completes
  // the error "no room ..." if memory is exhausted. The device's own failures are errors too.
  Status reserve(std::size_t bytes, const char* purpose);
  char* memory() const { return memory_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<PageDevice> device_;
  char* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

// Holds the index lists that the library reads of a step: lengths, page tables and first tokens. The lists
// are gathered on the host and sent in one copy.
class IndexBuffer {
 public:
  // Says where a list begins in the buffer.
  struct Part {
    std::size_t first = 0;
    Part from(std::int64_t n) const {
      return {first + static_cast<std::size_t>(n)};
    }  // The part without its first n numbers.
  };

  explicit IndexBuffer(std::shared_ptr<PageDevice> device) : device_(device), buffer_(std::move(device)) {}

  void clear() { indices_.clear(); }
  Part add(const std::vector<std::int32_t>& list);
  // Returns a pointer to host memory, valid until the next add().
  const std::int32_t* values(Part part) const { return indices_.data() + part.first; }

  // Copies all lists to the device. An error says that memory is exhausted or that the device has failed.
  Status send();
  // Returns a pointer to device memory. send() must have been called.
  const std::int32_t* at(Part part) const {
    return reinterpret_cast<const std::int32_t*>(buffer_.memory()) + part.first;
  }

 private:
  std::shared_ptr<PageDevice> device_;
  DeviceBuffer buffer_;
  std::vector<std::int32_t> indices_;
};

}  // namespace kvant
