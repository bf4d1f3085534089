// Constants holds the named arrays that calibration learns about one model, such as smoothing factors, means,
// codebooks and scales. Each array belongs to a (layer, KV head, side).
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/geometry.h"

namespace kvant {

class Constants {
 public:
  // Returns the array called `name`, or an empty span. The code that uses a name defines the array's shape.
  std::span<const float> find(int layer, int kv_head, Side side, const std::string& name) const;
  void set(int layer, int kv_head, Side side, const std::string& name, std::vector<float> values);

  // Calls visit(layer, kv_head, side, name, values) for every array, in a fixed order.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const auto& [key, values] : arrays_) {
      visit(std::get<0>(key), std::get<1>(key), std::get<2>(key), std::get<3>(key), values);
    }
  }
  bool empty() const { return arrays_.empty(); }

 private:
  using Key = std::tuple<int, int, Side, std::string>;
  std::map<Key, std::vector<float>> arrays_;
};

// Gives access to the constants of one (layer, KV head, side).
struct HeadConstants {
  const Constants* all = nullptr;  // null means that there are no constants
  int layer = 0;
  int kv_head = 0;
  Side side = Side::key;

  std::span<const float> find(const std::string& name) const {
    return all == nullptr ? std::span<const float>{} : all->find(layer, kv_head, side, name);
  }
};

}  // namespace kvant
