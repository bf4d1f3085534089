#include "attention/device_buffer.h"

#include <utility>

namespace kvant {

DeviceBuffer::DeviceBuffer(std::shared_ptr<PageDevice> device) : device_(std::move(device)) {}

DeviceBuffer::~DeviceBuffer() {
  device_->enter();
  device_->release(memory_);
}

Status DeviceBuffer::reserve(std::size_t bytes, const char* purpose) {
  if (bytes <= bytes_) return {};
  if (memory_ != nullptr)
    KVANT_RETURN_IF_ERROR(device_->finish());  // The previous step may still read the memory.
  device_->release(memory_);
  // Steps grow by a few tokens at a time, so the buffer asks for half as much again, and for less only if
  // memory is short.
  for (const std::size_t wanted : {bytes + bytes / 2, bytes}) {
    memory_ = static_cast<char*>(device_->allocate(wanted));
    bytes_ = memory_ != nullptr ? wanted : 0;
    if (memory_ != nullptr) return {};
  }
  return shortage("out of memory on {}: no room {}; use fewer tokens in a step", device_->name(), purpose);
}

IndexBuffer::Part IndexBuffer::add(const std::vector<std::int32_t>& list) {
  constexpr std::size_t kPartNumbers = 64;  // Each list begins at a multiple of 64 numbers.
  const Part part{(indices_.size() + kPartNumbers - 1) / kPartNumbers * kPartNumbers};
  indices_.resize(part.first);
  indices_.insert(indices_.end(), list.begin(), list.end());
  return part;
}

Status IndexBuffer::send() {
  const std::size_t bytes = indices_.size() * sizeof indices_[0];
  KVANT_RETURN_IF_ERROR(buffer_.reserve(bytes, "for its page tables"));
  device_->upload(buffer_.memory(), indices_.data(), bytes);
  return {};
}

}  // namespace kvant
