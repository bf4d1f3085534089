// Reports the size of a model's KV cache, and what fits, before anything runs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/cache_size.h"
#include "task/session.h"

namespace kvant {

struct CacheInfo {
  PreviewPlan preview;
  int context = 0;  // tokens of each sequence
  int batch = 1;
  std::int64_t available = 0;  // bytes left beside the weights
  PlanReport report;
  std::vector<std::int64_t> layers;
  std::int64_t cache = 0;  // bytes of one sequence at `context`
  CacheBits bits;
  ConstantSize constants;
  std::int64_t bf16 = 0;
  double token = 0;    // bytes of one more token, once it is quantized
  int max_tokens = 0;  // longest context when `batch` sequences share `available`
};

// Describes a recipe's cache for `batch` sequences of `context` tokens (0: the trained context). It never
// calibrates. Errors: the recipe does not suit the model; see also Session::known_constants.
Result<CacheInfo> cache_info(const Session& session, const Recipe& recipe, int context, int batch);

// Returns {"schema":"kvant.info/2","model":..,"layers":..,"cache_bytes":..,"max_tokens":..,"plan":..}.
// docs/reference/json.md lists all fields. `model` is the file's name.
nlohmann::ordered_json info_to_json(const Session& session, const CacheInfo& info, const std::string& model);

}  // namespace kvant
