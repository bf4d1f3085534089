// Trials of a tuning in progress, saved in a file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "calibrate/allocation_search.h"

namespace kvant {

class TuneState {
 public:
  // Loads the file at `path` if it has the same `identity` (model, texts, recipe, size). Empty path: nothing
  // is saved.
  TuneState(std::string path, std::string identity);
  // Returns the divergence of an earlier trial.
  std::optional<double> find(const SensitivityBend& bend) const;
  void add(const SensitivityBend& bend, double divergence);
  void remove() const;

 private:
  std::string path_, identity_;
  std::vector<BendTrial> trials_;
};

}  // namespace kvant
