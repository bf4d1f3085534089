// Calibration holds the constants learned for one model and their origin. A calibration is stored as a GGUF
// file.
#pragma once

#include <cstdint>
#include <limits>
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
  int rows = 8192;   // tokens of all samples together whose K and V are kept for learning
  int passages = 4;  // further samples, on which the results are evaluated
  int contexts = 8;  // longer samples, which are read only to train adapters
  int context_length = 4096;
  int context_queries = 256;       // queries of each context that train adapters
  int adapter_steps = 400;         // the most training steps of adapters
  bool adapters_end_early = true;  // training of a head ends when the judging contexts show no more gain
  int adapter_batch = 16;          // queries of a training step, from several contexts if one has too few
  bool self = false;               // the model writes the text
  // If true, sensitivities are measured by one run of the model for each place instead of one gradient pass.
  bool measure = false;
  std::uint64_t seed = 0;
  bool operator==(const CalibrationSettings&) const = default;
};

// Numbers the versions of the algorithm that turns samples and captured values into constants. Raise the
// version if the same text and settings would give different constants.
inline constexpr int kCalibrationAlgorithm = 8;

// CalibrationMethod says how constants are measured. Constants that are kept for first use come from the
// default method on any device, whichever command needs them first.
struct CalibrationMethod {
  std::string weights = "stored";     // the model's weights: "stored" or "f32"
  std::string backend = "reference";  // this backend attends while samples are read
  int algorithm = kCalibrationAlgorithm;
  // Names the device that reads the samples, "cpu" or "cuda". Devices differ only by rounding, so results of
  // all devices are kept for first use.
  std::string device = "cpu";
  bool operator==(const CalibrationMethod&) const = default;
};

// This constant has [d] values for each KV head: the factors by which the engine multiplies keys when it
// balances norms (model/query_key_balance.h). No recipe needs this constant, but caches of the same model in
// PyTorch apply the factors.
inline constexpr const char* kKeyFactors = "key-factors";

// RecipeQuality holds the errors of a recipe on passages that no constant was learned from. An error is the
// sum of squared differences divided by the sum of squares, over all layers and heads. All tokens except the
// sink are quantized. If the passages have no whole page, nothing is quantized and all errors are NaN.
struct RecipeQuality {
  std::string recipe;  // the recipe in its string form
  double key_error = std::numeric_limits<double>::quiet_NaN();
  double value_error = std::numeric_limits<double>::quiet_NaN();
  double output_error = std::numeric_limits<double>::quiet_NaN();  // the error of the attention outputs of
                                                                   // each passage's last tokens
};

struct Calibration {
  std::string model;            // only for messages
  std::string fingerprint;      // comes from Engine::fingerprint
  std::uint64_t text_hash = 0;  // FNV-1a of the text; 0 if the model wrote the text
  CalibrationSettings settings;
  CalibrationMethod method;
  std::vector<RecipeQuality> quality;  // one entry for each recipe that the calibration was made for
  Constants constants;                 // the keys are scoped names (needs.h)
};

struct LayersAndHeads {
  int layers = 0, kv_heads = 0;
  bool operator==(const LayersAndHeads&) const = default;
};

// Returns the number of layers, and of KV heads in a layer, that the constants describe.
LayersAndHeads layers_and_heads(const Constants& constants);

// Writes a calibration. Each array has the smallest type that holds its values exactly: INT8 with one scale,
// f16 or F32. Either the whole file is written or none. Returns the errors of write_whole_file().
Status write_calibration(const Calibration& calibration, const std::string& path);

// Returns whether a file is a calibration of any version. A damaged file may be one.
bool is_calibration(const std::string& path);

// Reads a calibration. Returns the errors of open_sealed_gguf(), and an error if the GGUF file is not a
// calibration, or has a different version.
Result<Calibration> read_calibration(const std::string& path);

// Returns the constants that `recipe` needs, by the names that resolve() looks up, or null if it needs none.
// Returns an error, which names `path`, if the calibration is for a model other than `fingerprint` or lacks a
// constant.
Result<std::shared_ptr<const Constants>> constants_from(const Calibration& calibration, const Recipe& recipe,
                                                        const Geometry& geometry,
                                                        const std::string& fingerprint,
                                                        const std::string& path);

}  // namespace kvant
