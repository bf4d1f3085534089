// Calibration: what was learned about one model, with where it comes from, as a file.
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
  int passages = 4;  // further samples on which the result is judged
  int contexts = 8;  // longer ones, read only where adapters are trained on them
  int context_length = 4096;
  int adapter_steps = 400;  // of their training, at most
  bool self = false;        // the model writes the text
  bool measure = false;     // sensitivities by a run of the model for each place, instead of one pass
  std::uint64_t seed = 0;
  bool operator==(const CalibrationSettings&) const = default;
};

// What calibration does with samples and captured values. To be raised where the same text and settings would
// give other constants than before.
inline constexpr int kCalibrationAlgorithm = 8;

// How constants are measured. All that is kept for first use is measured in the one way that the defaults
// say, whichever command asks first.
struct CalibrationMethod {
  std::string weights = "stored";     // of the model: stored or f32
  std::string backend = "reference";  // that attends while samples are read
  int algorithm = kCalibrationAlgorithm;
  // That reads samples: "cpu" or "cuda". Another one rounds otherwise, and no more: what it makes is kept for
  // first use as well.
  std::string device = "cpu";
  bool operator==(const CalibrationMethod&) const = default;
};

// The name of a constant that no recipe needs, [d] of each KV head's keys: by what the engine multiplies them
// where it balances norms (model/query_key_balance.h). Caches of the same model that PyTorch runs do so, too.
inline constexpr const char* kKeyFactors = "key-factors";

// Errors of a recipe on passages whose K and V nothing was learned from: sum of squared differences / sum of
// squares, over all layers and heads, everything but the sink quantized.
struct RecipeQuality {
  std::string recipe;       // the string form
  double key_error = 0;     // of K
  double value_error = 0;   // of V
  double output_error = 0;  // of the attention outputs of each passage's last tokens
};

struct Calibration {
  std::string model;            // for messages
  std::string fingerprint;      // Engine::fingerprint
  std::uint64_t text_hash = 0;  // FNV-1a of the text; 0: written by the model
  CalibrationSettings settings;
  CalibrationMethod method;
  std::vector<RecipeQuality> quality;  // of each recipe it was made for
  Constants constants;                 // by scoped name (needs.h)
};

// Stores each array in the smallest of INT8 with one scale, f16 and F32 that holds it exactly. Written whole
// or not at all. Errors: see write_whole_file.
Status write_calibration(const Calibration& calibration, const std::string& path);

// Errors: see open_sealed_gguf; a GGUF file that is no calibration, or one of another version of this layout
// or of the algorithm.
Result<Calibration> read_calibration(const std::string& path);

// The constants that `recipe` needs, by the names that resolve() looks for; null when it needs none. Errors
// name `path`: made for another model (`fingerprint`), or without what the recipe needs.
Result<std::shared_ptr<const Constants>> constants_from(const Calibration& calibration, const Recipe& recipe,
                                                        const Geometry& geometry,
                                                        const std::string& fingerprint,
                                                        const std::string& path);

}  // namespace kvant
