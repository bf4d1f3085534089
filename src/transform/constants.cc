#include "transform/constants.h"

#include <utility>

namespace kvant {

std::span<const float> Constants::find(int layer, int kv_head, Side side, const std::string& name) const {
  const auto it = arrays_.find(Key{layer, kv_head, side, name});
  if (it == arrays_.end()) return {};
  return it->second;
}

void Constants::set(int layer, int kv_head, Side side, const std::string& name, std::vector<float> values) {
  arrays_[Key{layer, kv_head, side, name}] = std::move(values);
}

}  // namespace kvant
