// What a server says about itself.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "serve/cache_grid.h"

namespace kvant {

// Of one recipe that the model is served with.
struct ServerInfo {
  std::string model;                      // as clients name it: for a recipe that is compared, with that
  std::vector<std::string> aliases = {};  // other names that clients may use
  bool any_model = false;                 // what clients call by names that are not served is this, too
  std::string model_path;
  std::string description;  // "llama 135M Q4_1"
  std::string fingerprint;  // of the weights
  std::string recipe;
  double bits = 0;                   // of an element of the cache at the full context
  std::string device;                // where the cache lies; empty: in the machine's memory
  std::vector<std::string> kernels;  // that serve sealed pages, each once
  CacheGrid grid;
  std::int64_t weight_bytes = 0;
  int n_vocab = 0, n_embd = 0;
};

// The number of the recipe that clients name by `model`; the first where they name none, -1: it is not
// served.
int recipe_of(std::span<const ServerInfo> served, const std::string& model);
// All names of a recipe, its own first.
std::vector<std::string> names_of(const ServerInfo& info);
// The name by which what was asked for as `model` is answered: an alias as it is, else the recipe's own.
std::string answering_name(const ServerInfo& info, const std::string& model);

}  // namespace kvant
