#include "transform/calibrated_constants.h"

#include <algorithm>
#include <cmath>

namespace kvant {

Result<std::span<const float>> calibrated_constants(const HeadConstants& constants, const std::string& name,
                                                    std::size_t size) {
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
  if (found.size() != size) {
    return error("the constants '{}' of {} are {} numbers, not {}: they belong to another model", name,
                 where(), found.size(), size);
  }
  if (!std::all_of(found.begin(), found.end(), [](float x) { return std::isfinite(x); })) {
    return error("the constants '{}' of {} hold a number that is not finite: calibrate again", name, where());
  }
  return found;
}

}  // namespace kvant
