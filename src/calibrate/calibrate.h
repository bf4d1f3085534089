// Calibrates a model for recipes: reads text, captures K and V, and learns the constants that the recipes
// need. Interrupted work can resume, because samples and constants are saved from time to time.
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
  std::string text;  // unused if the model writes its own text
  CalibrationSettings settings;
  int n_threads = 2;
  // Files with this path prefix keep interrupted work. The next call with the same model, text and settings
  // resumes the work. If the prefix is empty, no work is kept.
  std::string state_path;
  const std::atomic<bool>* stop = nullptr;  // once true, the work is saved and calibrate() returns an error;
                                            // null means that the work is never stopped
  CalibrationMethod method;                 // describes the engine and the backend, and is recorded in the
                                            // result
  // `reader` names the engine and the device that read and differentiate the model. If its members are null,
  // the calibrated engine does both.
  SampleReader reader;
  // Learned constants are saved at most once in this time, and captured samples once in six times as long.
  double seconds_between_saves = 10;
  std::function<void()> kept = [] {};  // called after work was saved in a file
};

// Learns all constants of the recipes. The result is deterministic: it does not depend on the number of
// threads, on interruptions or on other recipes in the request. Progress goes to stderr. Returns an error for
// an unsuitable text, for a recipe that does not fit the model, if memory is short, or after an
// interruption.
Result<Calibration> calibrate(Engine& engine, AttentionBackend& backend, const CalibrationRequest& request);

}  // namespace kvant
