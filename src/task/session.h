// A Session is a loaded model with the attention backend that serves it. All commands and the Python package
// open models as sessions, so calibration and memory checks are the same everywhere.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "attention/plan_report.h"
#include "model/compute_device.h"
#include "model/engine.h"

namespace kvant {

struct SessionOptions {
  std::string model;  // a GGUF file
  // Names the file of constants; an empty name selects the user's cache folder.
  std::string calibration;
  // attention/attention.h lists the names.
  std::string backend = "cpu";
  // model/compute_device.h lists the names.
  std::string device = "cpu";
  int n_threads = 1;
  // device_layers has the meaning of EngineOptions::device_layers.
  int device_layers = EngineOptions{}.device_layers;
  // If the value is true, caches are where the model is. If it is false, caches are in host memory and the
  // CPU attends.
  bool kv_offload = true;
  // Prints plans to stderr.
  bool verbose = false;
  // Makes a fall-back an error.
  bool strict = false;
  // `stop` has the meaning of EngineOptions::stop; null lets Ctrl-C end calibrations.
  const std::atomic<bool>* stop = nullptr;
};

// Holds a plan that was made without calibrating, for questions about sizes and kernels.
struct PreviewPlan {
  PlacedPlan plan;
  // The flag is true if stand-ins replace constants that the recipe requires.
  bool stands_in = false;
};

class Session {
 public:
  // Loads the model. `context` is the number of tokens that a sequence may reach; 0 selects the trained
  // context.
  static Result<Session> open(const SessionOptions& options, WeightMode weights, int context);

  Engine& engine() const { return *engine_; }
  AttentionBackend& backend() const { return *backend_; }
  const SessionOptions& options() const { return options_; }

  // Returns the constants for a recipe from the file of --calibration, or from an earlier `kvant calibrate`
  // or an earlier use. Returns null if there are none or if the recipe needs none.
  Result<std::shared_ptr<const Constants>> known_constants(const Recipe& recipe) const;
  // Returns the known constants. If there are none but the recipe can use constants, the function learns them
  // from the text at text_path. An empty path selects the usual text. If `backend` cannot serve the recipe,
  // nothing is learned.
  Result<std::shared_ptr<const Constants>> learned_constants(const Recipe& recipe,
                                                             const std::string& text_path = "",
                                                             const AttentionBackend* backend = nullptr) const;
  // Resolves a recipe for the model, and prints the plan with -v. The function calibrates only if the recipe
  // cannot work otherwise, or if text_path names a text for calibration. With --strict, a fall-back is an
  // error. `backend` replaces the session's own backend.
  Result<PlacedPlan> plan(const Recipe& recipe, const std::string& text_path = "",
                          const AttentionBackend* backend = nullptr) const;
  // Returns a plan that shows sizes and kernels, and never calibrates. `known` is known_constants(recipe), or
  // null.
  Result<PreviewPlan> preview(const Recipe& recipe, std::shared_ptr<const Constants> known) const;
  PlanReport report(const Plan& plan) const { return report_plan(plan, *backend_); }
  PlanReport report(const PreviewPlan& preview) const;
  // Returns the device that runs the model; null means the CPU.
  const ComputeDevice* device() const { return device_.get(); }
  bool caches_on_device() const { return device_ != nullptr && options_.kv_offload; }
  // Returns the bytes that caches may take in their memory. On a device, part of the free memory is left to
  // the model's steps.
  std::int64_t free_cache_bytes() const;
  // Returns an error if the memory of the session's caches has no room for `bytes` (largest_cache_bytes).
  // The function also returns an error if host memory has no room for host_bytes. `what` names the object: "a
  // KV cache of 8192 tokens".
  Status check_cache_memory(const std::string& what, std::int64_t bytes, std::int64_t host_bytes = 0) const;

 private:
  // Resolves a recipe with `constants`, and places the plan in the memory where the backend reads pages.
  Result<PlacedPlan> resolve_for(const AttentionBackend& backend, const Recipe& recipe,
                                 std::shared_ptr<const Constants> constants) const;
  // Does the same as preview() for any backend, but ignores -v and --strict.
  Result<PreviewPlan> placed_preview(const AttentionBackend& backend, const Recipe& recipe,
                                     std::shared_ptr<const Constants> known) const;
  // Prints the plan if -v is given. With --strict, returns an error for a fall-back.
  Status show(const Plan& plan, const AttentionBackend& backend) const;

  Session(const SessionOptions& options, WeightMode weights, int context, std::unique_ptr<Engine> engine,
          std::unique_ptr<AttentionBackend> backend, std::shared_ptr<ComputeDevice> device);

  SessionOptions options_;
  WeightMode weights_;
  int context_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<AttentionBackend> backend_;
  // Points to the device that holds the model. Null means that the model is in host memory.
  std::shared_ptr<ComputeDevice> device_;
};

// Returns an error if the plan has a fall-back. --strict requires this check.
Status check_fallbacks(const PlanReport& report);
// Returns an error for any device except the CPU. `what` names the feature that runs only on the CPU, such as
// "--compare-backend".
Status check_on_cpu(const SessionOptions& options, const std::string& what);
// Returns an error if host memory has no room for `bytes` more bytes. `what` names the object, such as "a KV
// cache of 8192 tokens".
Status check_memory(const std::string& what, std::int64_t bytes);
// Returns an error if the device has no room for `bytes` more bytes. Part of the device's memory is left to
// the model's steps.
Status check_device_memory(const PageDevice& device, const std::string& what, std::int64_t bytes);
// Warns if a sequence of `context` tokens is longer than the sequences on which the model was trained.
void warn_beyond_training(const Geometry& geometry, int context);

// Returns the number of tokens that a sequence may reach: `asked`, or for 0 the larger of the trained context
// and `wanted`. Warns if the context is longer than the trained context. Returns an error if memory has no
// room for the cache of `asked` tokens, or of `wanted` tokens if `asked` is 0.
Result<int> context_for(const Session& session, const PlacedPlan& plan, int asked, std::int64_t wanted);

}  // namespace kvant
