// What a server says about itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serve/cache_grid.h"

namespace kvant {

struct ServerInfo {
  std::string model;  // as clients name it
  std::string model_path;
  std::string description;  // "llama 135M Q4_1"
  std::string fingerprint;  // of the weights
  std::string recipe;
  double bits = 0;                   // of an element of the cache at the full context
  std::vector<std::string> kernels;  // that serve sealed pages, each once
  CacheGrid grid;
  std::int64_t weight_bytes = 0;
  int n_vocab = 0;
};

}  // namespace kvant
