#include "calibrate/first_use.h"

#include <cstdio>
#include <filesystem>

#include "calibrate/calibrate.h"
#include "calibrate/default_text.h"
#include "calibrate/needs.h"
#include "calibrate/sealed_gguf.h"

namespace kvant {

std::string first_use_path(const std::string& folder, const Recipe& recipe, const Geometry& geometry,
                           const std::string& fingerprint, const std::string& text) {
  std::uint64_t hash = fnv1a(text);
  for (const HeadNeeds& needs : needs_of({&recipe, 1}, geometry)) {
    for (const ScopedNeed& constant : needs.constants) {
      hash = fnv1a(
          fmt::format("{} {} {} {};", needs.layer, needs.kv_head, side_name(needs.side), constant.stored),
          hash);
    }
  }
  return (std::filesystem::path(folder) / fmt::format("{}-{:016x}.gguf", fingerprint, hash)).string();
}

Result<std::shared_ptr<const Constants>> load_or_calibrate(Engine& engine, AttentionBackend& backend,
                                                           const Recipe& recipe, const FirstUse& options) {
  const Geometry& geometry = engine.geometry();
  if (!needs_calibration(recipe, geometry)) return std::shared_ptr<const Constants>();
  const std::string path =
      first_use_path(options.folder, recipe, geometry, engine.fingerprint(), options.text);
  if (std::filesystem::exists(path)) {
    const auto found = read_calibration(path);
    if (found.ok()) return constants_from(*found, recipe, geometry, engine.fingerprint(), path);
    fmt::print(stderr, "kvant: {}\n", found.error().message);
  }
  fmt::print(stderr, "kvant: the recipe {} needs constants of this model: calibrating once into '{}'\n",
             label(recipe), path);
  std::error_code failure;
  std::filesystem::create_directories(options.folder, failure);
  if (failure) return error("cannot make the folder '{}': {}", options.folder, failure.message());
  auto text = options.text.empty() ? default_calibration_text() : Result<std::string>(options.text);
  if (!text.ok()) return text.error();
  const CalibrationRequest request{{recipe}, std::move(*text), CalibrationSettings{}, options.n_threads,
                                   path,     options.stop};
  const auto made = calibrate(engine, backend, request);
  if (!made.ok()) return made.error();
  KVANT_RETURN_IF_ERROR(write_calibration(*made, path));
  return constants_from(*made, recipe, geometry, engine.fingerprint(), path);
}

}  // namespace kvant
