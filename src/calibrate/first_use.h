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
  std::string text;                         // to learn from; empty: the default text
};

// The constants that `recipe` needs, null when it needs none. The folder holds one file for each model,
// set of needs and text; when it is missing or unusable, calibrates with the default settings, says so on
// stderr, and keeps the file. Errors: see calibrate() and write_calibration().
Result<std::shared_ptr<const Constants>> load_or_calibrate(Engine& engine, AttentionBackend& backend,
                                                           const Recipe& recipe, const FirstUse& options);

// The file of that folder which serves `recipe`: its name depends on the model, on what the recipe needs and
// on the text (empty: the default one).
std::string first_use_path(const std::string& folder, const Recipe& recipe, const Geometry& geometry,
                           const std::string& fingerprint, const std::string& text = "");

}  // namespace kvant
