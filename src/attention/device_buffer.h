// DeviceBuffer: memory of a device that grows to what steps need.
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

  // So many bytes at least; where it grows, what it held is lost. purpose: what a step has no room for or to
  // do then. An error: memory is exhausted, or the device has failed.
  Status reserve(std::size_t bytes, const char* purpose);
  char* memory() const { return memory_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<PageDevice> device_;
  char* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

// What the library reads of a step in the device's memory (lengths, page tables, begins), gathered on the
// host and sent at once.
class IndexBuffer {
 public:
  // Where a list lies among them all.
  struct Part {
    std::size_t first = 0;
    Part from(std::int64_t n) const { return {first + static_cast<std::size_t>(n)}; }  // without its first n
  };

  explicit IndexBuffer(std::shared_ptr<PageDevice> device) : device_(device), buffer_(std::move(device)) {}

  void clear() { indices_.clear(); }
  Part add(const std::vector<std::int32_t>& list);
  // On the host, until something is added.
  const std::int32_t* values(Part part) const { return indices_.data() + part.first; }

  // An error: memory is exhausted, or the device has failed.
  Status send();
  // On the device, once they have been sent.
  const std::int32_t* at(Part part) const {
    return reinterpret_cast<const std::int32_t*>(buffer_.memory()) + part.first;
  }

 private:
  std::shared_ptr<PageDevice> device_;
  DeviceBuffer buffer_;
  std::vector<std::int32_t> indices_;
};

}  // namespace kvant
