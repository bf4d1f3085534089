// DeviceBuffer: memory of a device that grows to what steps need.
#pragma once

#include <cstddef>
#include <memory>

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

}  // namespace kvant
