// Computes the size of a model's KV cache and what fits into memory, before the model runs. `kvant info`
// prints the result.
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
  int context = 0;  // number of tokens of each sequence
  int batch = 1;
  // Holds the bytes that the weights leave free for caches.
  std::int64_t available = 0;
  PlanReport report;
  std::vector<std::int64_t> layers;
  std::int64_t cache = 0;  // bytes of one sequence of `context` tokens
  CacheBits bits;
  ConstantSize constants;
  std::int64_t bf16 = 0;
  double token = 0;  // bytes of one more quantized token at `context`
  // Counts the layers whose sliding window is full, so they no longer grow.
  int n_full_layers = 0;
  // Holds the longest context at which `batch` sequences fit into `available` together.
  int max_tokens = 0;
};

// Describes a recipe's cache for `batch` sequences of `context` tokens. If `context` is 0, the sequences have
// the trained context. The function never calibrates. Returns an error if the recipe does not suit the model,
// or if Session::known_constants() fails.
Result<CacheInfo> cache_info(const Session& session, const Recipe& recipe, int context, int batch);

// Returns the document {"schema":"kvant.info/2",..}, whose fields docs/reference/json.md lists. `model` is
// the name of the file.
nlohmann::ordered_json info_to_json(const Session& session, const CacheInfo& info, const std::string& model);

}  // namespace kvant
