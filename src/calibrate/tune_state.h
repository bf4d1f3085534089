// TuneState saves the trials of a tuning in a file. A trial takes minutes, so an interrupted tuning resumes
// from the file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "calibrate/allocation_search.h"

namespace kvant {

class TuneState {
 public:
  // Loads the file at `path` if it has the same `identity` (model, texts, recipe, size). If the path is
  // empty, nothing is saved.
  TuneState(std::string path, std::string identity);
  // Returns the divergence of an earlier trial with this bend, or nothing if there was no such trial.
  std::optional<double> find(const SensitivityBend& bend) const;
  void add(const SensitivityBend& bend, double divergence);
  void remove() const;

 private:
  std::string path_, identity_;
  std::vector<BendTrial> trials_;
};

}  // namespace kvant
