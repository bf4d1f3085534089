#include "calibrate/training_summary.h"

#include <map>
#include <utility>

#include "calibrate/learn_head.h"

namespace kvant {

std::vector<TrainingGain> training_gains(const Constants& constants) {
  std::map<std::pair<Side, std::string>, TrainingGain> gains;
  constants.for_each([&](int, int, Side side, const std::string& name, const std::vector<float>& values) {
    for (const std::string suffix : {kErrorsSuffix, kLossesSuffix}) {
      if (!name.ends_with(suffix)) continue;
      TrainingGain& gain = gains[{side, name}];
      gain.side = side;
      gain.name = name.substr(0, name.size() - suffix.size());
      ++gain.heads;
      gain.before += values[0];
      gain.after += values[1];
      if (values[1] < values[0]) ++gain.improved;
    }
  });
  std::vector<TrainingGain> means;
  for (auto& [key, gain] : gains) {
    gain.before /= gain.heads;
    gain.after /= gain.heads;
    means.push_back(std::move(gain));
  }
  return means;
}

}  // namespace kvant
