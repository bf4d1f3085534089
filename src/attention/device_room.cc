#include "attention/device_room.h"

#include <utility>

namespace kvant {

DeviceRoom::DeviceRoom(std::shared_ptr<PageDevice> device) : device_(std::move(device)) {}

DeviceRoom::~DeviceRoom() {
  device_->enter();
  device_->release(memory_);
}

Status DeviceRoom::reserve(std::size_t bytes, const char* purpose) {
  if (bytes <= bytes_) return {};
  if (memory_ != nullptr) KVANT_RETURN_IF_ERROR(device_->finish());  // the step before may still read it
  device_->release(memory_);
  bytes_ = bytes + bytes / 2;
  memory_ = static_cast<char*>(device_->allocate(bytes_));
  if (memory_ != nullptr) return {};
  bytes_ = 0;
  return shortage("out of memory on {}: no room {}; use fewer tokens in a step", device_->name(), purpose);
}

}  // namespace kvant
