// Trials of a tuning in progress, kept in a file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "calibrate/allocation_search.h"

namespace kvant {

class TuneState {
 public:
  // Takes up what the file at `path` holds for the same `identity` (model, texts, recipe, size). Empty path:
  // nothing is kept.
  TuneState(std::string path, std::string identity);
  // The divergence of a trial that was run before.
  std::optional<double> find(const SensitivityBend& bend) const;
  void add(const SensitivityBend& bend, double divergence);
  void remove() const;

 private:
  std::string path_, identity_;
  std::vector<BendTrial> trials_;
};

}  // namespace kvant
