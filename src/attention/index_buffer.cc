#include "attention/index_buffer.h"

namespace kvant {

IndexBuffer::Part IndexBuffer::add(const std::vector<std::int32_t>& list) {
  constexpr std::size_t kPartNumbers = 64;  // lists begin at multiples of so many
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
