// Calibrates a model for recipes: reads text, captures K and V, learns what the recipes need.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/result.h"
#include "calibrate/calibration.h"
#include "calibrate/read_samples.h"
#include "model/engine.h"

namespace kvant {

struct CalibrationRequest {
  std::vector<Recipe> recipes;
  std::string text;  // not used when the model writes its own
  CalibrationSettings settings;
  int n_threads = 2;
  // Work that is interrupted is kept in files whose names begin so, and taken up by the next call with the
  // same model, text and settings. Empty: nowhere.
  std::string state_path;
  const std::atomic<bool>* stop = nullptr;  // once true: keep the work and return an error; null: never
  CalibrationMethod method;                 // what the engine and the backend are, to be written down
  // The same model on a device, which reads and differentiates; with nulls the calibrated engine does.
  SampleReader reader;
  double seconds_between_saves = 10;   // at least; a killed process loses so much work, and a context
  std::function<void()> kept = [] {};  // called after work was kept in those files
};

// The result is deterministic: threads, interruptions and other recipes in the same request don't change it.
// Shows its progress on stderr. Errors: unsuitable text, memory, "interrupted"; a recipe that does not fit
// the model.
Result<Calibration> calibrate(Engine& engine, AttentionBackend& backend, const CalibrationRequest& request);

}  // namespace kvant
