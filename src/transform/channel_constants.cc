#include "transform/channel_constants.h"

#include <cmath>

namespace kvant {

Result<std::vector<float>> channel_constants(const HeadConstants& constants, const std::string& name,
                                             int head_dim) {
  const auto where = [&] {
    return fmt::format("layer {} KV head {} {}", constants.layer, constants.kv_head,
                       side_name(constants.side));
  };
  const std::span<const float> found = constants.find(name);
  if (found.empty()) {
    return error(
        "{} has no calibrated constants '{}': run `kvant calibrate` with this model and recipe first",
        where(), name);
  }
  if (found.size() != static_cast<std::size_t>(head_dim)) {
    return error("the constants '{}' of {} are for a head size of {}, not {}: they belong to another model",
                 name, where(), found.size(), head_dim);
  }
  for (float x : found) {
    if (!std::isfinite(x)) {
      return error("the constants '{}' of {} hold a number that is not finite: calibrate again", name,
                   where());
    }
  }
  return std::vector<float>(found.begin(), found.end());
}

}  // namespace kvant
