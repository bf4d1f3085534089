// Session: a loaded model with the attention backend that serves it.
#pragma once

#include <memory>
#include <string>

#include "attention/plan_report.h"
#include "cli/model_options.h"
#include "model/engine.h"

namespace kvant {

class Session {
 public:
  // Loads the model. context: tokens that a sequence may reach, 0: the trained context.
  static Result<Session> open(const ModelOptions& options, WeightMode weights, int context);

  Engine& engine() const { return *engine_; }
  AttentionBackend& backend() const { return *backend_; }

  // What calibration learned for a recipe: from the file of --calibration, or made on first use, on the text
  // at text_path instead of the usual one.
  Result<std::shared_ptr<const Constants>> constants(const Recipe& recipe,
                                                     const std::string& text_path = "") const;
  // Resolves a recipe for the model, with its calibration (made now, if need be); prints the plan with -v.
  // With --strict a fall-back is an error. text_path: a text to calibrate on, instead of the usual one.
  // backend: that the plan is for, instead of the session's.
  Result<std::shared_ptr<const Plan>> plan(const Recipe& recipe, const std::string& text_path = "",
                                           const AttentionBackend* backend = nullptr) const;
  // The same plan, but never calibrates: where nothing has been learned yet, constants are stand-ins, which
  // sizes and kernels don't depend on, and a budget is spread as if all heads were worth the same.
  Result<std::shared_ptr<const Plan>> plan_uncalibrated(const Recipe& recipe) const;
  PlanReport report(const Plan& plan) const { return report_plan(plan, *backend_); }

 private:
  // How every command resolves.
  Result<std::shared_ptr<const Plan>> resolve_for(const AttentionBackend& backend, const Recipe& recipe,
                                                  std::shared_ptr<const Constants> constants) const;
  bool knows_constants(const Recipe& recipe) const;

  Session(const ModelOptions& options, std::unique_ptr<Engine> engine,
          std::unique_ptr<AttentionBackend> backend);

  bool verbose_, strict_;
  int n_threads_;
  std::string calibration_;  // file; empty: made on first use
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<AttentionBackend> backend_;
};

// For --strict: an error when the plan falls back to something slower.
Status check_fallbacks(const PlanReport& report);
// An error when `bytes` more are not to be had on this machine. what: "a KV cache of 8192 tokens".
Status check_memory(const std::string& what, std::int64_t bytes);
// Warns when a sequence of `context` tokens is longer than the model was trained for.
void warn_beyond_training(const Geometry& geometry, int context);

}  // namespace kvant
