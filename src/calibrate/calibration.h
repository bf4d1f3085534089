// Calibration: the constants learned for one model and their origin, stored as a file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

struct CalibrationSettings {
  int samples = 64;
  int length = 512;  // tokens of a sample
  int rows = 8192;   // tokens of all samples whose K and V are kept for learning
  int passages = 4;  // further samples on which the result is evaluated
  int contexts = 8;  // longer samples, read only if adapters are trained on them
  int context_length = 4096;
  int adapter_steps = 400;  // maximal training steps of adapters
  bool self = false;        // the model writes the text
  // measure sensitivities by a run of the model for each place, instead of one gradient pass
  bool measure = false;
  std::uint64_t seed = 0;
  bool operator==(const CalibrationSettings&) const = default;
};

// Version of what calibration does with samples and captured values. Must be raised when the same text and
// settings would give other constants than before.
inline constexpr int kCalibrationAlgorithm = 8;

// How constants are measured. Constants kept for first use are always measured by the default method,
// whichever command needs them first.
struct CalibrationMethod {
  std::string weights = "stored";     // the model's weights: stored or f32
  std::string backend = "reference";  // the backend that attends while samples are read
  int algorithm = kCalibrationAlgorithm;
  // The device that reads samples: "cpu" or "cuda". Devices differ only by rounding, so results of all
  // devices are kept for first use.
  std::string device = "cpu";
  bool operator==(const CalibrationMethod&) const = default;
};

// Name of a constant that no recipe needs, [d] per KV head: the factors by which the engine multiplies keys
// when it balances norms (model/query_key_balance.h). Caches of the same model in PyTorch apply them too.
inline constexpr const char* kKeyFactors = "key-factors";

// Errors of a recipe on passages that nothing was learned from: sum of squared differences / sum of squares,
// over all layers and heads. Everything but the sink is quantized.
struct RecipeQuality {
  std::string recipe;       // the string form
  double key_error = 0;     // of K
  double value_error = 0;   // of V
  double output_error = 0;  // of the attention outputs of each passage's last tokens
};

struct Calibration {
  std::string model;            // for messages
  std::string fingerprint;      // Engine::fingerprint
  std::uint64_t text_hash = 0;  // FNV-1a of the text; 0: the model wrote the text
  CalibrationSettings settings;
  CalibrationMethod method;
  std::vector<RecipeQuality> quality;  // one for each recipe that the calibration was made for
  Constants constants;                 // by scoped name (needs.h)
};

// Stores each array in the smallest type that holds it exactly: INT8 with one scale, f16 or F32. Writes the
// whole file or nothing. Errors: see write_whole_file.
Status write_calibration(const Calibration& calibration, const std::string& path);

// Errors: see open_sealed_gguf; a GGUF file that is not a calibration; another version of the layout or the
// algorithm.
Result<Calibration> read_calibration(const std::string& path);

// Returns the constants that `recipe` needs, by the names that resolve() looks up; null if it needs none.
// Errors name `path`: the calibration is for another model (`fingerprint`), or lacks a constant.
Result<std::shared_ptr<const Constants>> constants_from(const Calibration& calibration, const Recipe& recipe,
                                                        const Geometry& geometry,
                                                        const std::string& fingerprint,
                                                        const std::string& path);

}  // namespace kvant
