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
  std::string folder;  // created when needed; empty: nothing is kept
  int n_threads = 2;
  const std::atomic<bool>* stop = nullptr;  // see CalibrationRequest
  std::string text;                         // to learn from; empty: the default text
};

// The file of that folder which serves `recipe`: its name depends on the model, on what the recipe needs, on
// the text (empty: the default one) and on the method.
std::string first_use_path(const std::string& folder, const Recipe& recipe, const Geometry& geometry,
                           const std::string& fingerprint, const std::string& text = "",
                           const CalibrationMethod& method = {});

// What the folder has for `recipe`: null when the recipe needs nothing, or there is nothing (or no folder). A
// file that cannot be used is as none, and stderr says why.
std::shared_ptr<const Constants> find_calibration(const Recipe& recipe, const Geometry& geometry,
                                                  const std::string& fingerprint, const std::string& folder,
                                                  const std::string& text = "");

// That, or made now with the default settings, which stderr says, and kept in the folder; null when the
// recipe needs nothing. Where the folder can't be written, a warning says so and the next run learns again.
// The engine and the backend are what CalibrationMethod says by default. Errors: see calibrate().
Result<std::shared_ptr<const Constants>> load_or_calibrate(Engine& engine, AttentionBackend& backend,
                                                           const Recipe& recipe, const FirstUse& options);

}  // namespace kvant
