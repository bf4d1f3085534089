#include "calibrate/tune_state.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/json_file.h"

namespace kvant {

// The file has lines of text: the identity, and then five numbers per trial.
TuneState::TuneState(std::string path, std::string identity)
    : path_(std::move(path)), identity_(std::move(identity)) {
  if (path_.empty()) return;
  std::ifstream file(path_);
  std::string line;
  if (!std::getline(file, line) || line != identity_) return;
  BendTrial trial;
  while (file >> trial.bend.keys >> trial.bend.depth >> trial.bend.contrast >> trial.bend.curve >>
         trial.divergence)
    trials_.push_back(trial);
}

std::optional<double> TuneState::find(const SensitivityBend& bend) const {
  const auto found = std::find_if(trials_.begin(), trials_.end(),
                                  [&](const BendTrial& trial) { return trial.bend == bend; });
  return found == trials_.end() ? std::nullopt : std::optional(found->divergence);
}

void TuneState::add(const SensitivityBend& bend, double divergence) {
  trials_.push_back({bend, divergence});
  if (path_.empty()) return;
  std::string text = identity_ + "\n";
  for (const BendTrial& t : trials_) {
    text += fmt::format("{:.17g} {:.17g} {:.17g} {:.17g} {:.17g}\n", t.bend.keys, t.bend.depth,
                        t.bend.contrast, t.bend.curve, t.divergence);
  }
  (void)write_whole_file(path_, text);  // if writing fails, the trial must be run again next time
}

void TuneState::remove() const {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove(path_, ignored);
}

}  // namespace kvant
