#include "calibrate/calibration.h"

#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <span>

#include "base/float16.h"
#include "calibrate/codebook.h"
#include "calibrate/needs.h"
#include "calibrate/sealed_gguf.h"

namespace kvant {
namespace {

// The file has these keys:
//     general.type                    "kvant-calibration"
//     kvant.calibration.version       version of this layout
//     ....model, fingerprint, text_hash, samples, length, rows, passages, contexts,
//       context_length, context_queries, adapter_steps, adapters_end_early, adapter_batch, self,
//       measure, seed, weights, backend, algorithm, device
//     ....recipes                     string forms, one per line
//     ....names                       the scoped names of constants, one per line
//     ....layer, kv_head, side, name  place and name of array i
// The tensor "quality" holds three errors of each recipe. Array i is the tensor "<i>", and the scale of an
// INT8 tensor is "<i>.scale".
constexpr int kVersion = 2;  // version 1 had fingerprints without the weights
constexpr const char* kType = "kvant-calibration";

std::string key(const char* name) {
  return std::string("kvant.calibration.") + name;
}

std::string joined_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t first = 0; first < text.size();) {
    const std::size_t end = std::min(text.find('\n', first), text.size());
    lines.push_back(text.substr(first, end - first));
    first = end + 1;
  }
  return lines;
}

bool add_int8(const std::string& name, const std::vector<float>& values, SealedGguf& file) {
  if (rounded_to_int8(values) != values) return false;
  const float scale = int8_scale(values);
  std::vector<std::int8_t> integers;
  for (const float x : values) integers.push_back(static_cast<std::int8_t>(std::lround(x / scale)));
  file.add_i8(name, integers);
  file.add_f32(name + ".scale", {&scale, 1});
  return true;
}

void add_array(const std::string& name, const std::vector<float>& values, SealedGguf& file) {
  if (add_int8(name, values, file)) return;
  if (rounded_to_f16(values) != values) {
    file.add_f32(name, values);
    return;
  }
  std::vector<std::uint16_t> halves(values.size());
  f16_row_from_float(values.data(), halves.data(), values.size());
  file.add_f16(name, halves);
}

void add_constants(const Constants& constants, SealedGguf& file) {
  std::vector<std::string> names;
  std::map<std::string, std::int32_t> index_of;
  std::vector<std::int32_t> layers, kv_heads, sides, indices;
  constants.for_each(
      [&](int layer, int kv_head, Side side, const std::string& name, const std::vector<float>& values) {
        const auto [found, is_new] = index_of.emplace(name, static_cast<std::int32_t>(names.size()));
        if (is_new) names.push_back(name);
        add_array(std::to_string(layers.size()), values, file);
        layers.push_back(layer);
        kv_heads.push_back(kv_head);
        sides.push_back(static_cast<std::int32_t>(side));
        indices.push_back(found->second);
      });
  file.set(key("names"), joined_lines(names));
  file.set(key("layer"), layers);
  file.set(key("kv_head"), kv_heads);
  file.set(key("side"), sides);
  file.set(key("name"), indices);
}

void add_settings(const CalibrationSettings& settings, SealedGguf& file) {
  file.set(key("samples"), std::int64_t{settings.samples});
  file.set(key("length"), std::int64_t{settings.length});
  file.set(key("rows"), std::int64_t{settings.rows});
  file.set(key("passages"), std::int64_t{settings.passages});
  file.set(key("contexts"), std::int64_t{settings.contexts});
  file.set(key("context_length"), std::int64_t{settings.context_length});
  file.set(key("context_queries"), std::int64_t{settings.context_queries});
  file.set(key("adapter_steps"), std::int64_t{settings.adapter_steps});
  file.set(key("adapters_end_early"), std::int64_t{settings.adapters_end_early});
  file.set(key("adapter_batch"), std::int64_t{settings.adapter_batch});
  file.set(key("self"), std::int64_t{settings.self});
  file.set(key("measure"), std::int64_t{settings.measure});
  file.set(key("seed"), static_cast<std::int64_t>(settings.seed));
}

void add_method(const CalibrationMethod& method, SealedGguf& file) {
  file.set(key("weights"), method.weights);
  file.set(key("backend"), method.backend);
  file.set(key("algorithm"), std::int64_t{method.algorithm});
  file.set(key("device"), method.device);
}

CalibrationMethod read_method(const GgufFile& file) {
  return {file.text(key("weights")).value_or(""), file.text(key("backend")).value_or(""),
          static_cast<int>(file.integer(key("algorithm")).value_or(0)),
          file.text(key("device")).value_or("cpu")};
}

// Returns an error if kvant cannot read files of this version.
Status check_version(std::int64_t version, const std::string& path) {
  if (version == kVersion) return {};
  if (version == 1) {
    return error(
        "the calibration '{}' has the fingerprint of an earlier version, which did not distinguish models "
        "with other weights: run kvant calibrate again",
        path);
  }
  return error("the calibration '{}' has version {}, and this program reads version {}: calibrate again",
               path, version, kVersion);
}

CalibrationSettings read_settings(const GgufFile& file) {
  const auto number = [&](const char* name) { return file.integer(key(name)).value_or(0); };
  CalibrationSettings settings;
  settings.samples = static_cast<int>(number("samples"));
  settings.length = static_cast<int>(number("length"));
  settings.rows = static_cast<int>(number("rows"));
  settings.passages = static_cast<int>(number("passages"));
  settings.contexts = static_cast<int>(number("contexts"));
  settings.context_length = static_cast<int>(number("context_length"));
  // Earlier versions had no such settings, and used today's defaults.
  const CalibrationSettings usual;
  settings.context_queries =
      static_cast<int>(file.integer(key("context_queries")).value_or(usual.context_queries));
  settings.adapter_steps = static_cast<int>(number("adapter_steps"));
  settings.adapters_end_early = file.integer(key("adapters_end_early")).value_or(1) != 0;
  settings.adapter_batch = static_cast<int>(file.integer(key("adapter_batch")).value_or(usual.adapter_batch));
  settings.self = number("self") != 0;
  settings.measure = number("measure") != 0;
  settings.seed = static_cast<std::uint64_t>(number("seed"));
  return settings;
}

// Returns the values of a tensor. Returns nothing if the tensor is missing, or has a type that add_array()
// does not write.
std::vector<float> read_array(const GgufFile& file, const std::string& name) {
  const ggml_tensor* tensor = file.tensor(name);
  if (tensor == nullptr) return {};
  const auto n = static_cast<std::size_t>(ggml_nelements(tensor));
  const void* data = file.tensor_data(tensor);
  std::vector<float> values(n);
  switch (tensor->type) {
    case GGML_TYPE_F32:
      std::copy_n(static_cast<const float*>(data), n, values.begin());
      return values;
    case GGML_TYPE_F16:
      float_row_from_f16(static_cast<const std::uint16_t*>(data), values.data(), n);
      return values;
    case GGML_TYPE_I8: {
      const std::vector<float> scale = read_array(file, name + ".scale");
      if (scale.size() != 1) return {};
      for (std::size_t i = 0; i < n; ++i)
        values[i] = scale[0] * static_cast<float>(static_cast<const std::int8_t*>(data)[i]);
      return values;
    }
    default:
      return {};
  }
}

bool read_constants(const GgufFile& file, Constants& constants) {
  const std::vector<std::string> names = split_lines(file.text(key("names")).value_or(""));
  const auto layers = file.integers(key("layer"));
  const auto kv_heads = file.integers(key("kv_head"));
  const auto sides = file.integers(key("side"));
  const auto indices = file.integers(key("name"));
  if (kv_heads.size() != layers.size() || sides.size() != layers.size() || indices.size() != layers.size())
    return false;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    std::vector<float> values = read_array(file, std::to_string(i));
    const bool named = indices[i] >= 0 && indices[i] < static_cast<std::int64_t>(names.size());
    if (values.empty() || !named || sides[i] < 0 || sides[i] > 1) return false;
    constants.set(static_cast<int>(layers[i]), static_cast<int>(kv_heads[i]), static_cast<Side>(sides[i]),
                  names[indices[i]], std::move(values));
  }
  return true;
}

void add_quality(const std::vector<RecipeQuality>& quality, SealedGguf& file) {
  std::vector<std::string> recipes;
  std::vector<float> errors;
  for (const RecipeQuality& q : quality) {
    recipes.push_back(q.recipe);
    for (const double error : {q.key_error, q.value_error, q.output_error})
      errors.push_back(static_cast<float>(error));
  }
  file.set(key("recipes"), joined_lines(recipes));
  if (!errors.empty()) file.add_f32("quality", errors);
}

bool read_quality(const GgufFile& file, std::vector<RecipeQuality>& quality) {
  const std::vector<std::string> recipes = split_lines(file.text(key("recipes")).value_or(""));
  const std::vector<float> errors = read_array(file, "quality");
  if (errors.size() != recipes.size() * 3) return false;
  for (std::size_t i = 0; i < recipes.size(); ++i)
    quality.push_back({recipes[i], errors[3 * i], errors[3 * i + 1], errors[3 * i + 2]});
  return true;
}

}  // namespace

LayersAndHeads layers_and_heads(const Constants& constants) {
  LayersAndHeads numbers;
  constants.for_each([&](int layer, int kv_head, Side, const std::string&, const std::vector<float>&) {
    numbers = {std::max(numbers.layers, layer + 1), std::max(numbers.kv_heads, kv_head + 1)};
  });
  return numbers;
}

Status write_calibration(const Calibration& calibration, const std::string& path) {
  SealedGguf file;
  file.set("general.type", kType);
  file.set(key("version"), std::int64_t{kVersion});
  file.set(key("model"), calibration.model);
  file.set(key("fingerprint"), calibration.fingerprint);
  file.set(key("text_hash"), static_cast<std::int64_t>(calibration.text_hash));
  add_settings(calibration.settings, file);
  add_method(calibration.method, file);
  add_quality(calibration.quality, file);
  add_constants(calibration.constants, file);
  return file.write(path);
}

bool is_calibration(const std::string& path) {
  const auto file = GgufFile::open(path);
  return file.ok() && (*file)->text("general.type") == kType;
}

Result<Calibration> read_calibration(const std::string& path) {
  const auto file = open_sealed_gguf(path);
  if (!file.ok()) return file.error();
  if ((*file)->text("general.type") != kType)
    return error("'{}' is a GGUF file, but not a calibration: make one with kvant calibrate", path);
  KVANT_RETURN_IF_ERROR(check_version((*file)->integer(key("version")).value_or(0), path));
  Calibration calibration;
  calibration.method = read_method(**file);
  if (calibration.method.algorithm != kCalibrationAlgorithm) {
    return error(
        "the calibration '{}' was made by version {} of the algorithm, and this program's is {}: calibrate "
        "again",
        path, calibration.method.algorithm, kCalibrationAlgorithm);
  }
  calibration.model = (*file)->text(key("model")).value_or("");
  calibration.fingerprint = (*file)->text(key("fingerprint")).value_or("");
  calibration.text_hash = static_cast<std::uint64_t>((*file)->integer(key("text_hash")).value_or(0));
  calibration.settings = read_settings(**file);
  if (!read_quality(**file, calibration.quality) || !read_constants(**file, calibration.constants))
    return error("the calibration '{}' is incomplete: calibrate again", path);
  return calibration;
}

Result<std::shared_ptr<const Constants>> constants_from(const Calibration& calibration, const Recipe& recipe,
                                                        const Geometry& geometry,
                                                        const std::string& fingerprint,
                                                        const std::string& path) {
  if (!needs_calibration(recipe, geometry)) return std::shared_ptr<const Constants>();
  if (calibration.fingerprint != fingerprint) {
    return error(
        "the calibration '{}' is of another model ({}, fingerprint {}, not {}): run kvant calibrate with "
        "this "
        "model, or leave the file out",
        path, calibration.model, calibration.fingerprint, fingerprint);
  }
  auto constants = constants_for(recipe, geometry, calibration.constants);
  if (constants.ok()) return std::make_shared<const Constants>(std::move(constants).value());
  std::string made_for;
  for (const RecipeQuality& q : calibration.quality) made_for += (made_for.empty() ? "" : "; ") + q.recipe;
  return error("the calibration '{}' has {}: it was made for {}; run kvant calibrate with this recipe", path,
               constants.error().message, made_for.empty() ? "no recipe" : made_for);
}

}  // namespace kvant
