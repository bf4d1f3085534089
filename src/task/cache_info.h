// What a model's KV cache takes, and what fits, before anything is run.
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
  int context = 0;  // tokens of a sequence
  int batch = 1;
  std::int64_t available = 0;  // bytes beyond the weights
  PlanReport report;
  std::vector<std::int64_t> layers;
  std::int64_t cache = 0;  // bytes of one sequence at `context`
  CacheBits bits;
  ConstantSize constants;
  std::int64_t bf16 = 0;
  double token = 0;    // bytes of one more token, once sealed
  int max_tokens = 0;  // of each of `batch` sequences
};

// A recipe's cache in `batch` sequences of `context` tokens (0: as many as the model was trained for). Never
// calibrates. Errors: the recipe doesn't suit the model; see Session::known_constants.
Result<CacheInfo> cache_info(const Session& session, const Recipe& recipe, int context, int batch);

// {"schema":"kvant.info/2","model":..,"layers":..,"cache_bytes":..,"max_tokens":..,"plan":..}:
// docs/reference/json.md has all. model: the file.
nlohmann::ordered_json info_to_json(const Session& session, const CacheInfo& info, const std::string& model);

}  // namespace kvant
