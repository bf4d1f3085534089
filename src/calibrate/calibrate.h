// Calibrates a model for recipes: reads text, captures K and V, and learns the constants of the recipes.
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
  // Path prefix of the files that keep interrupted work. The next call with the same model, text and settings
  // resumes it. Empty: nothing is kept.
  std::string state_path;
  const std::atomic<bool>* stop = nullptr;  // when true: save the work and return an error; null: never
  CalibrationMethod method;                 // describes engine and backend; is recorded in the result
  // Reads and differentiates the model on a device. With nulls the calibrated engine does both.
  SampleReader reader;
  double seconds_between_saves = 10;   // a lower bound; a killed process loses this much work and a context
  std::function<void()> kept = [] {};  // called after work was saved in those files
};

// The result is deterministic: threads, interruptions and other recipes in the same request don't change it.
// Shows its progress on stderr. Errors: unsuitable text, memory, "interrupted"; a recipe that does not fit
// the model.
Result<Calibration> calibrate(Engine& engine, AttentionBackend& backend, const CalibrationRequest& request);

}  // namespace kvant
