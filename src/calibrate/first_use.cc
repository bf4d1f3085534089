#include "calibrate/first_use.h"

#include <cstdio>
#include <filesystem>

#include "base/json_file.h"
#include "base/warn.h"
#include "calibrate/calibrate.h"
#include "calibrate/capture_size.h"
#include "calibrate/default_text.h"
#include "calibrate/learn_page_metrics.h"
#include "calibrate/needs.h"
#include "calibrate/sealed_gguf.h"

namespace kvant {
namespace {

std::string text_or_default(const std::string& text) {
  return text.empty() ? default_calibration_text() : text;
}

// Checks that the file can be written, before learning takes minutes.
Status can_be_kept(const std::string& folder, const std::string& path) {
  if (folder.empty()) return error("neither $XDG_CACHE_HOME nor $HOME is set");
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) return error("cannot create the folder '{}': {}", folder, failure.message());
  return check_writable(path);
}

}  // namespace

std::string first_use_path(const std::string& folder, const Recipe& recipe, const Geometry& geometry,
                           const std::string& fingerprint, const std::string& text,
                           const CalibrationMethod& method) {
  std::uint64_t hash = fnv1a(text_or_default(text));
  hash = fnv1a(fmt::format("{} {} {};", method.weights, method.backend, method.algorithm), hash);
  for (const HeadNeeds& needs : needs_of({&recipe, 1}, geometry)) {
    for (const ScopedNeed& constant : needs.constants) {
      hash = fnv1a(
          fmt::format("{} {} {} {};", needs.layer, needs.kv_head, side_name(needs.side), constant.stored),
          hash);
    }
  }
  return (std::filesystem::path(folder) / fmt::format("{}-{:016x}.gguf", fingerprint, hash)).string();
}

std::shared_ptr<const Constants> find_calibration(const Recipe& recipe, const Geometry& geometry,
                                                  const std::string& fingerprint, const std::string& folder,
                                                  const std::string& text) {
  if (folder.empty() || !needs_calibration(recipe, geometry)) return nullptr;
  const std::string path = first_use_path(folder, recipe, geometry, fingerprint, text);
  std::error_code failure;
  if (!std::filesystem::exists(path, failure)) return nullptr;
  const auto constants = [&]() -> Result<std::shared_ptr<const Constants>> {
    const auto file = read_calibration(path);
    if (!file.ok()) return file.error();
    return constants_from(*file, recipe, geometry, fingerprint, path);
  }();
  if (constants.ok()) return *constants;
  say("kvant: {}\n", constants.error().message);
  return nullptr;
}

Result<std::shared_ptr<const Constants>> load_or_calibrate(Engine& engine, AttentionBackend& backend,
                                                           const Recipe& recipe, const FirstUse& options) {
  const Geometry& geometry = engine.geometry();
  const std::string fingerprint = engine.fingerprint();
  if (!needs_calibration(recipe, geometry)) return std::shared_ptr<const Constants>();
  if (auto found = find_calibration(recipe, geometry, fingerprint, options.folder, options.text))
    return found;
  std::string path = first_use_path(options.folder, recipe, geometry, fingerprint, options.text);
  if (const Status kept = can_be_kept(options.folder, path); kept.ok()) {
    say("kvant: the recipe {} needs constants of this model: calibrating once into '{}'\n", label(recipe),
        path);
  } else {
    warn(
        fmt::format("the recipe {} needs constants of this model, which can't be stored ({}): every run has "
                    "to learn them",
                    label(recipe), kept.error().message));
    path.clear();
  }
  CalibrationSettings settings;
  // Errors on passages would take more time than a metric of a short text, and nobody reads them here.
  if (needs_page_metrics({&recipe, 1}, geometry, NeedKind::sampled_metric) &&
      !learns_from_samples({&recipe, 1}, geometry))
    settings.passages = 0;
  const CalibrationRequest request{
      {recipe},           text_or_default(options.text), settings, options.n_threads, path, options.stop,
      CalibrationMethod{}};
  const auto made = calibrate(engine, backend, request);
  if (!made.ok()) return made.error();
  if (!path.empty()) {
    if (const Status written = write_calibration(*made, path); !written.ok())
      warn(written.error().message + ": the next run learns them again");
  }
  return constants_from(*made, recipe, geometry, fingerprint, path);
}

}  // namespace kvant
