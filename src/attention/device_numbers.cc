#include "attention/device_numbers.h"

namespace kvant {

DeviceNumbers::Part DeviceNumbers::add(const std::vector<std::int32_t>& list) {
  constexpr std::size_t kPartNumbers = 64;  // lists begin at multiples of so many
  const Part part{(numbers_.size() + kPartNumbers - 1) / kPartNumbers * kPartNumbers};
  numbers_.resize(part.first);
  numbers_.insert(numbers_.end(), list.begin(), list.end());
  return part;
}

Status DeviceNumbers::send() {
  const std::size_t bytes = numbers_.size() * sizeof numbers_[0];
  KVANT_RETURN_IF_ERROR(buffer_.reserve(bytes, "for its page tables"));
  device_->upload(buffer_.memory(), numbers_.data(), bytes);
  return {};
}

}  // namespace kvant
