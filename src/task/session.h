// Session: a loaded model with the attention backend that serves it.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "attention/plan_report.h"
#include "model/compute_device.h"
#include "model/engine.h"

namespace kvant {

struct SessionOptions {
  std::string model;            // a GGUF file
  std::string calibration;      // file; empty: the user's cache folder
  std::string backend = "cpu";  // attention/attention.h
  std::string device = "cpu";   // model/compute_device.h
  int n_threads = 1;
  int device_layers = EngineOptions{}.device_layers;  // of EngineOptions
  bool kv_offload = true;  // caches lie where the model does; false: in host memory, and the CPU attends
  bool verbose = false;    // prints plans to stderr
  bool strict = false;     // a fall-back to something slower is an error
  const std::atomic<bool>* stop = nullptr;  // of EngineOptions; null: Ctrl-C ends calibrations
};

// A plan before anything of the model is known.
struct PreviewPlan {
  PlacedPlan plan;
  bool stands_in = false;  // with constants that stand in for those that the recipe can't do without
};

class Session {
 public:
  // Loads the model. context: tokens that a sequence may reach, 0: the trained context.
  static Result<Session> open(const SessionOptions& options, WeightMode weights, int context);

  Engine& engine() const { return *engine_; }
  AttentionBackend& backend() const { return *backend_; }
  const SessionOptions& options() const { return options_; }

  // What is known of the model for a recipe: from the file of --calibration, or what kvant calibrate or an
  // earlier use has left. Null: nothing, or the recipe needs nothing.
  Result<std::shared_ptr<const Constants>> known_constants(const Recipe& recipe) const;
  // The same, but learned now where there is nothing and the recipe can use it. text_path: a text to learn
  // from, instead of the usual one. backend: that is to serve the recipe; nothing is learned for what it
  // can't serve.
  Result<std::shared_ptr<const Constants>> learned_constants(const Recipe& recipe,
                                                             const std::string& text_path = "",
                                                             const AttentionBackend* backend = nullptr) const;
  // Resolves a recipe for the model; prints the plan with -v. Its calibration is made now only if the recipe
  // can't be used without. With --strict a fall-back is an error. text_path: a text to calibrate on, instead
  // of the usual one. backend: that the plan is for, instead of the session's.
  Result<PlacedPlan> plan(const Recipe& recipe, const std::string& text_path = "",
                          const AttentionBackend* backend = nullptr) const;
  // The same plan, for its sizes and kernels: never calibrates. known: known_constants(recipe), or null.
  Result<PreviewPlan> preview(const Recipe& recipe, std::shared_ptr<const Constants> known) const;
  PlanReport report(const Plan& plan) const { return report_plan(plan, *backend_); }
  PlanReport report(const PreviewPlan& preview) const;
  const ComputeDevice* device() const { return device_.get(); }  // that runs the model; null: the CPU
  bool caches_on_device() const { return device_ != nullptr && options_.kv_offload; }
  // What caches may take where they lie: on a device, what its free memory has beyond what steps need.
  std::int64_t free_cache_bytes() const;
  // An error when the memory where the session's caches lie doesn't have `bytes` (largest_cache_bytes) for
  // them, or the machine's none for host_bytes, which go with them. what: "a KV cache of 8192 tokens".
  Status check_cache_memory(const std::string& what, std::int64_t bytes, std::int64_t host_bytes = 0) const;

 private:
  // A recipe with these constants, placed where the backend reads pages.
  Result<PlacedPlan> resolve_for(const AttentionBackend& backend, const Recipe& recipe,
                                 std::shared_ptr<const Constants> constants) const;
  // preview() for any backend, without -v and --strict.
  Result<PreviewPlan> placed_preview(const AttentionBackend& backend, const Recipe& recipe,
                                     std::shared_ptr<const Constants> known) const;
  // What -v and --strict make of a plan.
  Status show(const Plan& plan, const AttentionBackend& backend) const;

  Session(const SessionOptions& options, WeightMode weights, int context, std::unique_ptr<Engine> engine,
          std::unique_ptr<AttentionBackend> backend, std::shared_ptr<ComputeDevice> device);

  SessionOptions options_;
  WeightMode weights_;
  int context_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<AttentionBackend> backend_;
  std::shared_ptr<ComputeDevice> device_;  // where the model lies; null: in the machine's memory
};

// For --strict: an error when the plan falls back to something slower.
Status check_fallbacks(const PlanReport& report);
// An error on any other device. what: what runs on the CPU alone, as in "--compare-backend".
Status check_on_cpu(const SessionOptions& options, const std::string& what);
// An error when `bytes` more are not to be had on this machine. what: "a KV cache of 8192 tokens".
Status check_memory(const std::string& what, std::int64_t bytes);
// The same of a device's memory, part of which is left to what else a model's steps need.
Status check_device_memory(const PageDevice& device, const std::string& what, std::int64_t bytes);
// Warns when a sequence of `context` tokens is longer than the model was trained for.
void warn_beyond_training(const Geometry& geometry, int context);

// The tokens that a sequence may reach: `asked`, or for 0 those that the model was trained for, or `wanted`
// if they are more. Warns of a context that is longer than the training. An error when there is no memory for
// the cache of what was asked for, or of the wanted tokens.
Result<int> context_for(const Session& session, const PlacedPlan& plan, int asked, std::int64_t wanted);

}  // namespace kvant
