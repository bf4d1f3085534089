#include "task/session.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>

#include "attention/device_backend.h"
#include "base/machine_limits.h"
#include "base/progress.h"
#include "base/text_file.h"
#include "base/warn.h"
#include "calibrate/checkpoint_constants.h"
#include "calibrate/first_use.h"
#include "calibrate/needs.h"
#include "calibrate/rope_turns.h"
#include "eval/cache_size.h"
#include "model/compute_device.h"
#include "model/weights.h"
#include "recipe/stand_in_constants.h"
#include "task/calibration_files.h"

namespace kvant {
namespace {

// On a device, a model's steps need kDeviceReserve bytes in addition to weights and caches. The reserve holds
// activations of batches, ggml's pool, tables and partial sums of attention, and the unused part of the slabs
// by which caches grow.
constexpr std::int64_t kDeviceReserve = std::int64_t{1} << 30;

// Prints which recipe replaces a recipe that is not calibrated. The message appears once per process and
// recipe.
void announce_uncalibrated(const Plan& plan, const std::string& model) {
  static std::mutex mutex;
  static std::set<std::string> announced;
  const std::string asked = label(plan.asked);
  const std::lock_guard lock(mutex);
  if (plan.calibration != CalibrationState::missing || !announced.insert(asked).second) return;
  say("kvant: {} is used in place of {}, which is not calibrated for this model: `kvant calibrate -m "
      "'{}' --kv {}` calibrates it\n",
      plan.name, asked, model, asked);
}

// Prints what kvant does not check about a calibration that was made from a checkpoint. The message appears
// once per process.
void announce_checkpoint(const Calibration& calibration, const std::string& path) {
  static std::once_flag said;
  std::call_once(said, [&] {
    warn(
        fmt::format("the calibration '{}' was made from a checkpoint ({}); kvant does not check that this "
                    "model has the same weights",
                    path, calibration.model));
  });
}

}  // namespace

Session::Session(const SessionOptions& options, WeightMode weights, int context,
                 std::unique_ptr<Engine> engine, std::unique_ptr<AttentionBackend> backend,
                 std::shared_ptr<ComputeDevice> device)
    : options_(options),
      weights_(weights),
      context_(context),
      engine_(std::move(engine)),
      backend_(std::move(backend)),
      device_(std::move(device)) {}

Result<Session> Session::open(const SessionOptions& options, WeightMode weights, int context) {
  std::shared_ptr<ComputeDevice> device;
  if (options.device == "cpu" && options.device_layers != EngineOptions{}.device_layers)
    return error(
        "--gpu-layers needs a GPU, but the model runs on the CPU: leave it out, or use --device cuda");
  if (options.device == "cpu" && !options.kv_offload)
    return error(
        "--no-kv-offload needs a GPU, but the model runs on the CPU: leave it out, or use --device cuda");
  if (options.device != "cpu") {
    auto opened = open_device(options.device);
    if (!opened.ok()) return opened.error();
    device = std::move(opened).value();
  }
  const bool host_attends = device == nullptr || !options.kv_offload;
  auto backend = host_attends ? make_backend(options.backend) : make_device_backend(device->pages());
  if (!backend.ok()) return backend.error();
  auto engine = Engine::load(
      options.model, {options.n_threads, weights, context, device, options.stop, options.device_layers});
  if (!engine.ok()) return engine.error();
  const Geometry& geometry = (*engine)->geometry();
  if (!options.kv_offload && geometry.is_recurrent()) {
    return error(
        "'{}' has recurrent states, which --device {} needs in its own memory: leave out --no-kv-offload, or "
        "use --device cpu",
        geometry.model, options.device);
  }
  return Session(options, weights, context, std::move(engine).value(), std::move(backend).value(),
                 std::move(device));
}

Result<std::shared_ptr<const Constants>> Session::known_constants(const Recipe& recipe) const {
  const Geometry& geometry = engine_->geometry();
  if (options_.calibration.empty())
    return find_calibration(recipe, geometry, engine_->fingerprint(), calibration_folder());
  auto file = read_calibration(options_.calibration);
  if (!file.ok()) return file.error();
  if (is_of_checkpoint(*file)) {
    const ModelParts parts = engine_->parts();
    file = for_gguf_model(*file,
                          {engine_->fingerprint(), geometry, rope_turns(parts, geometry, options_.n_threads),
                           parts.weights.balances_keys()},
                          options_.calibration);
    if (!file.ok()) return file.error();
    announce_checkpoint(*file, options_.calibration);
  }
  return constants_from(*file, recipe, geometry, engine_->fingerprint(), options_.calibration);
}

// The method of calibration is always the same, so the constants do not depend on which command needs them
// first.
Result<std::shared_ptr<const Constants>> Session::learned_constants(const Recipe& recipe,
                                                                    const std::string& text_path,
                                                                    const AttentionBackend* backend) const {
  if (!options_.calibration.empty()) return known_constants(recipe);
  const Geometry& geometry = engine_->geometry();
  std::string text;
  if (!text_path.empty()) {
    auto read = read_text_file(text_path);
    if (!read.ok()) return read.error();
    text = std::move(read).value();
  }
  auto known = find_calibration(recipe, geometry, engine_->fingerprint(), calibration_folder(), text);
  if (known != nullptr || !needs_calibration(recipe, geometry)) return known;
  if (backend != nullptr) {
    const auto served = placed_preview(*backend, recipe, nullptr);
    if (!served.ok()) return served.error();
  }
  std::optional<Interruption> interruption;
  if (options_.stop == nullptr) interruption.emplace();
  const std::atomic<bool>* stop = interruption ? interruption->flag() : options_.stop;
  const FirstUse use{calibration_folder(), options_.n_threads, stop, std::move(text)};
  const CalibrationMethod usual;
  if (weights_ == WeightMode::as_stored && context_ == 0 && options_.device == "cpu" &&
      options_.backend == usual.backend)
    return load_or_calibrate(*engine_, *backend_, recipe, use);
  const auto learning = make_backend(usual.backend);
  if (!learning.ok()) return learning.error();
  const auto engine = Engine::load(options_.model, {options_.n_threads, WeightMode::as_stored, /*context=*/0,
                                                    /*device=*/nullptr, options_.stop});
  if (!engine.ok()) return engine.error();
  return load_or_calibrate(**engine, **learning, recipe, use);
}

Result<PlacedPlan> Session::plan(const Recipe& recipe, const std::string& text_path,
                                 const AttentionBackend* backend) const {
  if (backend == nullptr) backend = backend_.get();
  const bool learns = !text_path.empty() || requires_calibration(recipe, engine_->geometry());
  auto known = learns ? learned_constants(recipe, text_path, backend) : known_constants(recipe);
  if (!known.ok()) return known.error();
  auto plan = resolve_for(*backend, recipe, std::move(known).value());
  if (!plan.ok()) return plan;
  announce_uncalibrated(**plan, options_.model);
  KVANT_RETURN_IF_ERROR(show(**plan, *backend));
  return plan;
}

Result<PlacedPlan> Session::resolve_for(const AttentionBackend& backend, const Recipe& recipe,
                                        std::shared_ptr<const Constants> constants) const {
  auto plan = resolve(recipe, engine_->geometry(), std::move(constants), backend.page_order());
  if (!plan.ok()) return plan.error();
  return backend.place(std::move(plan).value());
}

Status Session::show(const Plan& plan, const AttentionBackend& backend) const {
  const PlanReport report = report_plan(plan, backend);
  if (options_.verbose) say("{}", plan_table(report));
  return options_.strict ? check_fallbacks(report) : Status();
}

Result<PreviewPlan> Session::placed_preview(const AttentionBackend& backend, const Recipe& recipe,
                                            std::shared_ptr<const Constants> known) const {
  const Geometry& geometry = engine_->geometry();
  // stand_in_constants() requires that overrides lie within the model.
  KVANT_RETURN_IF_ERROR(check_recipe(recipe, geometry));
  const bool stands_in = known == nullptr && requires_calibration(recipe, geometry);
  auto plan =
      resolve_for(backend, recipe, stands_in ? stand_in_constants(recipe, geometry) : std::move(known));
  if (!plan.ok()) return plan.error();
  return PreviewPlan{std::move(plan).value(), stands_in};
}

Result<PreviewPlan> Session::preview(const Recipe& recipe, std::shared_ptr<const Constants> known) const {
  auto preview = placed_preview(*backend_, recipe, std::move(known));
  if (preview.ok()) KVANT_RETURN_IF_ERROR(show(*preview->plan, *backend_));
  return preview;
}

PlanReport Session::report(const PreviewPlan& preview) const {
  PlanReport report = report_plan(*preview.plan, *backend_);
  if (!preview.stands_in) return report;
  report.calibration = CalibrationState::missing;
  report.calibration_note = "calibrated on first use, or with kvant calibrate";
  return report;
}

Status check_fallbacks(const PlanReport& report) {
  if (report.calibration == CalibrationState::missing)
    return error("recipe '{}' falls back: it is {}; leave out --strict to accept this", report.summary,
                 report.calibration_note);
  if (report.fallbacks.empty()) return {};
  const Fallback& first = report.fallbacks.front();
  return error("recipe '{}' falls back: {} ({}); leave out --strict to accept this", report.summary,
               first.what, first.reason);
}

Status Session::check_cache_memory(const std::string& what, std::int64_t bytes,
                                   std::int64_t host_bytes) const {
  if (!caches_on_device()) return check_memory(what, bytes + host_bytes);
  if (host_bytes > 0) KVANT_RETURN_IF_ERROR(check_memory("the host's part of " + what, host_bytes));
  return check_device_memory(*device_->pages(), what, bytes);
}

std::int64_t Session::free_cache_bytes() const {
  if (!caches_on_device()) return available_memory_bytes();
  return std::max<std::int64_t>(0, device_->pages()->free_bytes() - kDeviceReserve);
}

Status check_device_memory(const PageDevice& device, const std::string& what, std::int64_t bytes) {
  const std::int64_t available = device.free_bytes();
  if (bytes <= available - kDeviceReserve) return {};
  return shortage(
      "{} needs {}, but {} has {} free, of which {} are reserved for the model's steps: use a smaller "
      "context or a recipe with fewer bits",
      what, readable_bytes(static_cast<double>(bytes)), device.name(),
      readable_bytes(static_cast<double>(available)), readable_bytes(static_cast<double>(kDeviceReserve)));
}

Status check_on_cpu(const SessionOptions& options, const std::string& what) {
  if (options.device == "cpu") return {};
  return error("{} runs on the CPU only, not with --device {}: leave out one of them", what, options.device);
}

Status check_memory(const std::string& what, std::int64_t bytes) {
  const std::int64_t available = available_memory_bytes();
  if (available == 0 || bytes <= available) return {};
  return shortage(
      "{} needs {}, but this machine has {} available: use a smaller context or a recipe with fewer bits",
      what, readable_bytes(static_cast<double>(bytes)), readable_bytes(static_cast<double>(available)));
}

void warn_beyond_training(const Geometry& geometry, int context) {
  if (geometry.trained_context == 0 || context <= geometry.trained_context) return;
  warn(fmt::format(
      "the context of {} tokens exceeds the {} that the model was trained for: expect worse output", context,
      geometry.trained_context));
}

Result<int> context_for(const Session& session, const PlacedPlan& plan, int asked, std::int64_t wanted) {
  if (wanted > INT32_MAX) return error("{} tokens are more than a sequence can have", wanted);
  const Geometry& geometry = session.engine().geometry();
  const int context = asked > 0 ? asked : std::max(geometry.trained_context, static_cast<int>(wanted));
  warn_beyond_training(geometry, context);
  // The function checks the memory only for the tokens that are certain to be needed.
  const int held = asked > 0 ? asked : static_cast<int>(wanted);
  KVANT_RETURN_IF_ERROR(session.check_cache_memory(fmt::format("a KV cache of {} tokens", held),
                                                   largest_cache_bytes(plan, held)));
  return context;
}

}  // namespace kvant
