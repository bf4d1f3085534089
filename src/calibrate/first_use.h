// Calibration on first use: found in a folder, or made and kept there.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "attention/attention.h"
#include "base/result.h"
#include "calibrate/calibration.h"
#include "model/engine.h"

namespace kvant {

struct FirstUse {
  std::string folder;  // created when needed
  int n_threads = 2;
  const std::atomic<bool>* stop = nullptr;  // see CalibrationRequest
};

// The constants that `recipe` needs, null when it needs none. The folder holds one file for each model and
// set of needs; when it is missing or unusable, calibrates with the default settings on the default text,
// says so on stderr, and keeps the file. Errors: see calibrate() and write_calibration().
Result<std::shared_ptr<const Constants>> load_or_calibrate(Engine& engine, AttentionBackend& backend,
                                                           const Recipe& recipe, const FirstUse& options);

// The file of that folder which serves `recipe`: its name depends on the model and on what the recipe needs.
std::string first_use_path(const std::string& folder, const Recipe& recipe, const Geometry& geometry,
                           const std::string& fingerprint);

}  // namespace kvant
