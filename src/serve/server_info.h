// Describes a server to its clients.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "serve/cache_grid.h"

namespace kvant {

// Describes one recipe with which the model is served.
struct ServerInfo {
  std::string model;                      // as clients name it; for a compared recipe, with the recipe's name
  std::vector<std::string> aliases = {};  // other names that clients may use
  bool any_model = false;                 // this recipe also serves names that no model has
  std::string model_path;
  std::string description;  // "llama 135M Q4_1"
  std::string fingerprint;  // fingerprint of the weights
  std::string recipe;
  double bits = 0;                   // bits per value of the cache at the full context
  std::string device;                // device of the cache; empty: the machine's memory
  std::vector<std::string> kernels;  // kernels that read quantized pages, each once
  CacheGrid grid;
  std::int64_t weight_bytes = 0;
  int n_vocab = 0, n_embd = 0;
};

// Returns the number of the recipe that clients call `model`. It is the first one for an empty name, and -1
// if no recipe has the name.
int recipe_of(std::span<const ServerInfo> served, const std::string& model);
// Returns all names of a recipe, its own first.
std::vector<std::string> names_of(const ServerInfo& info);
// Returns the model's name in responses to requests for `model`: an alias stays, others become the recipe's
// own name.
std::string answering_name(const ServerInfo& info, const std::string& model);

}  // namespace kvant
