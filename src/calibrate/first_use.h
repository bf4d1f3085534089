// Loads a recipe's constants from a folder when they are first needed. If there are none, calibrates and
// saves the result.
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
  std::string folder;  // created when needed; if empty, nothing is saved
  int n_threads = 2;
  const std::atomic<bool>* stop = nullptr;  // CalibrationRequest::stop
  std::string text;                         // the text to learn from; if empty, the default text
};

// Returns the path of the folder's file for `recipe`. The name depends on the model, on the constants that
// the recipe needs, on the text and on the method. An empty string stands for the default text.
std::string first_use_path(const std::string& folder, const Recipe& recipe, const Geometry& geometry,
                           const std::string& fingerprint, const std::string& text = "",
                           const CalibrationMethod& method = {});

// Loads the constants for `recipe` from the folder. Returns null if the recipe needs none, and if there is no
// folder or file. A file that cannot be used counts as missing, and stderr gets the reason.
std::shared_ptr<const Constants> find_calibration(const Recipe& recipe, const Geometry& geometry,
                                                  const std::string& fingerprint, const std::string& folder,
                                                  const std::string& text = "");

// Loads the constants. If there are none, makes them with the default settings, reports that on stderr, and
// saves them. Returns null if the recipe needs none. If the folder cannot be written, a warning says so, and
// the next run must learn again. `engine` and `backend` must match the default CalibrationMethod. Returns the
// errors of calibrate().
Result<std::shared_ptr<const Constants>> load_or_calibrate(Engine& engine, AttentionBackend& backend,
                                                           const Recipe& recipe, const FirstUse& options);

}  // namespace kvant
