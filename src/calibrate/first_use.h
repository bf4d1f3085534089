// Calibration on first use: it is loaded from a folder, or made and saved there.
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
  std::string folder;  // created when needed; empty: nothing is kept
  int n_threads = 2;
  const std::atomic<bool>* stop = nullptr;  // see CalibrationRequest
  std::string text;                         // text to learn from; empty: the default text
};

// Returns the file in that folder for `recipe`. Its name depends on the model, on the constants that the
// recipe needs, on the text (empty: the default one) and on the method.
std::string first_use_path(const std::string& folder, const Recipe& recipe, const Geometry& geometry,
                           const std::string& fingerprint, const std::string& text = "",
                           const CalibrationMethod& method = {});

// Loads the folder's constants for `recipe`. Returns null if the recipe needs none, or if there is no folder
// or file. A file that can't be used counts as missing, and stderr says why.
std::shared_ptr<const Constants> find_calibration(const Recipe& recipe, const Geometry& geometry,
                                                  const std::string& fingerprint, const std::string& folder,
                                                  const std::string& text = "");

// Loads the constants or, if there are none, makes them with the default settings (reported on stderr) and
// saves them. Returns null if the recipe needs none. If the folder can't be written, a warning says so, and
// the next run learns again. Engine and backend must match the default CalibrationMethod. Errors: see
// calibrate().
Result<std::shared_ptr<const Constants>> load_or_calibrate(Engine& engine, AttentionBackend& backend,
                                                           const Recipe& recipe, const FirstUse& options);

}  // namespace kvant
